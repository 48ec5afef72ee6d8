"""Passes: the kinds of measurement of a model.

Reasons for its design: docs/decisions/passes.md.
"""
