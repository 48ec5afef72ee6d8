"""Profile one model in this process: the library below the sweeps."""
