"""Counting that all frameworks share.

Reasons for its design: docs/decisions/counting.md.
"""
