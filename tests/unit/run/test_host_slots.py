"""Where a sweep was measured."""

from __future__ import annotations

import dataclasses

from support.samples import comparison
from sweeprof.report.explore import places
from sweeprof.report.summary import environment_items
from sweeprof.results.record import Json, Record
from sweeprof.run.comparison import of_cluster, seen_hosts

HEAD = {"host": "login", "cpu": {"model": "old"}, "os": "Linux 5"}


def record(host: str | None, model: str = "EPYC") -> Record:
    environment = {
        "host": host,
        "cpu": {"model": model},
        "os": "Linux 6",
        "session": "s",
        "load": [1.0],
        "scheduler": {},
    }
    return Record("s1", "ca", "analysis", "ok", environment=environment if host else {"scheduler": {"job": "1_0"}})


def test_the_nodes_are_told_and_not_the_host_that_submitted() -> None:
    seen: dict[str, Json] = {}
    seen_hosts([record("n2"), record("n1"), record("n2", "other"), record(None)], seen)
    found = of_cluster(HEAD, seen)
    assert (found["host"], found["submitted_from"], found["os"]) == ("n1, n2", "login", "Linux 6")
    assert found["cpu"]["model"] == "EPYC"
    assert not {"session", "load", "scheduler"} & found.keys()
    items = environment_items(dataclasses.replace(comparison(), environment=found))
    assert items[:2] == [("host", "n1, n2"), ("submitted from", "login")]


def test_nodes_of_several_kinds_are_all_told() -> None:
    seen: dict[str, Json] = {}
    seen_hosts([record("n1", "EPYC"), record("n2", "Xeon")], seen)
    assert of_cluster(HEAD, seen)["cpu"]["model"] == "EPYC; Xeon"


def test_where_nothing_was_measured_only_the_driver_is_known() -> None:
    assert of_cluster(HEAD, {}) == HEAD


def test_the_page_does_not_take_the_login_node_for_software() -> None:
    seen: dict[str, Json] = {}
    seen_hosts([record("n1")], seen)
    shown = dict(places(dataclasses.replace(comparison(), environment=of_cluster(HEAD, seen))))
    assert shown["with"] == "Linux 6"
    assert shown["on"] == "EPYC"
