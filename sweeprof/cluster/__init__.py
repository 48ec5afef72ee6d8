"""Shards as tasks of a cluster: jobs of Slurm, actors of Ray.

Reasons for its design: docs/decisions/cluster.md.
"""
