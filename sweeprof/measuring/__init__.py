"""Tools that backends and passes measure with: inputs, clocks, calibrated timing, layer times, allocations.

Reasons for its design: docs/decisions/measuring.md.
"""
