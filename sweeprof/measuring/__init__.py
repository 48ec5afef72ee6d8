"""Tools that backends and passes measure with: inputs, clocks, calibrated timing, layer times, allocations."""
