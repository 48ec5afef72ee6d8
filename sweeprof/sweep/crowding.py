"""Whether what runs at once asks for more threads than the host has processors."""

from __future__ import annotations

import os

from rich.console import Console
from rich.text import Text

from sweeprof.results.record import Warning
from sweeprof.sweep.plan import MEASURING, Plan


def crowding(plan: Plan, processors: int | None = None) -> Warning | None:
    """The warning that a plan's ``jobs`` deserve; ``processors``: those that this process may use."""
    available = processors or len(os.sched_getaffinity(0))
    threads = max((int(c.config["backend"].get("threads") or 1) for c in plan.combinations), default=1)
    asked = plan.jobs * threads
    if plan.cluster or plan.jobs == 1 or asked <= available or MEASURING.issuperset(plan.passes):
        return None
    where = f" in each of {len(plan.shards)} shards" if len(plan.shards) > 1 else ""
    text = f"{plan.jobs} jobs of {threads} threads{where} ask for {asked} of {available} processors"
    return Warning("oversubscribed", text, f"jobs={max(1, available // threads)}, or fewer backend.threads")


def warn_of_crowding(plan: Plan, out: Console) -> None:
    """Print the warning that the plan deserves, if any."""
    warning = crowding(plan)
    if warning:
        out.print(Text(f"{warning.code}: {warning.text}; {warning.advice}", style="yellow"), soft_wrap=True)
