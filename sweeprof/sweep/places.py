"""Where a sweep was measured, when that is not where its command ran. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sweeprof.results.record import Json, Record

OF_A_TRIAL = ("scheduler", "session", "ran", "others", "threads", "load", "gpu", "settings", "deviations")
"""What of a record's environment is not its host's."""


def seen_hosts(records: Iterable[Record], seen: dict[str, Json]) -> None:
    """Add to ``seen`` the environment of every host that is not in it yet."""
    for record in records:
        host = record.environment.get("host")
        if host is not None and host not in seen:
            seen[host] = {key: value for key, value in record.environment.items() if key not in OF_A_TRIAL}


def of_cluster(head: Mapping[str, Any], hosts: Mapping[str, Json]) -> Json:
    """The environment of a sweep whose jobs ran on these hosts: that of the first, with the names and processors of all."""
    if not hosts:
        return dict(head)
    first = next(iter(hosts.values()))
    models = dict.fromkeys(str(one["cpu"].get("model")) for one in hosts.values() if one.get("cpu"))
    cpu = {**(first.get("cpu") or {}), "model": "; ".join(models)} if models else first.get("cpu")
    return {**first, "host": ", ".join(sorted(hosts)), "cpu": cpu, "submitted_from": head.get("host")}
