"""Passes: what can be measured of a model."""
