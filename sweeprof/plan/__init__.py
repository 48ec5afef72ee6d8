"""From a composed config to the plan of a sweep: shape, points, resolved configs, combinations, trials.

Reasons for its design: docs/decisions/plan.md.
"""
