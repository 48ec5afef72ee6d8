"""Running a plan: the driver, shards, the fork server, workers, locks, and resuming.

``sweeper.sweep`` (called by Hydra) plans; ``driver.run`` makes the folder; ``launchers.launch_shards`` has a Hydra launcher start
``shard.run_shard`` for every shard; ``fork_server.WorkerPool`` gives each trial a process, by default forked by a fork server;
``worker.run_trial`` runs the pass and writes the record; ``comparison.comparison_of`` and ``reports.write_reports`` read them,
also while the sweep runs.

Reasons for its design: docs/decisions/run.md.
"""
