"""Shards as tasks of a cluster: jobs of Slurm, actors of Ray, pods of Kubernetes.

Reasons for its design: docs/decisions/cluster.md.
"""
