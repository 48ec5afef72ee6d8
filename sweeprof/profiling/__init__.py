"""Profile one model in this process: the library below the sweeps.

Reasons for its design: docs/decisions/profiling.md.
"""
