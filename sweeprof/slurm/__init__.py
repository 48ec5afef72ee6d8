"""Shards as jobs of Slurm.

Reasons for its design: docs/decisions/slurm.md.
"""
