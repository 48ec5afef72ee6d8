"""The folder of a sweep on disk: its files, the events of its shards, the jobs of a cluster, and why results are missing."""
