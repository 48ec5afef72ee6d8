"""Records, what is computed from them, and how combinations are compared: plain data, no framework.

Reasons for its design: docs/decisions/results.md.
"""
