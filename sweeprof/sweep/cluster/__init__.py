"""Shards on a cluster: what they ask for, how Slurm is told, how they are followed from the sweep's folder.

The folder is all that head and jobs have in common: a task reads the plan there, leaves records, events and a note of its own, and
whoever follows it (the head, a head that was started again, ``sweeprof.collect``) asks Slurm only what has become of it.
"""
