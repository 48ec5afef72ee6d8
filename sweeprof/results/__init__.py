"""Records, what is computed from them, and how combinations are compared: plain data, no framework."""
