"""Running a plan: the driver, shards, the fork server, workers, locks, and resuming.

Reasons for its design: docs/decisions/run.md.
"""
