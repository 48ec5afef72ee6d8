"""Metrics: functions from what the passes saw to one number each. No framework is imported here.

A metric set (``conf/metrics/NAME.yaml``) selects them: a built-in one by its name, any other by the ``_target_`` of a function
that :func:`sweeprof.metrics.metric.metric` decorates.

Reasons for its design: docs/decisions/metrics.md.
"""
