"""The options of Ray's actors, and what is known of an actor that waits or has ended."""

from __future__ import annotations

import pytest

from support.planning import planned
from sweeprof.cluster.ray import actor_options
from sweeprof.errors import UserError

FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none")


def resources(*arguments: str) -> dict[str, object]:
    (found,) = planned(["cluster=ray", *FAKE, *arguments]).cluster["resources"]
    return actor_options(found)


def test_options() -> None:
    assert resources() == {"num_cpus": 1}
    assert resources("backend.threads=4", "device=cuda", "cluster.memory=2GiB") == {
        "num_cpus": 4,
        "num_gpus": 1,
        "memory": 2 << 30,
    }
    labels = "cluster.options={label_selector: {zone: a}, resources: {fast_disk: 1}}"
    assert resources("cluster.gpus=A100:2", labels) == {
        "num_cpus": 1,
        "num_gpus": 2,
        "accelerator_type": "A100",
        "label_selector": {"zone": "a"},
        "resources": {"fast_disk": 1},
    }


def test_an_option_by_which_tasks_are_found_is_refused() -> None:
    with pytest.raises(UserError, match=r"cluster\.options\.name: 'x' is set by sweeprof"):
        planned(["cluster=ray", *FAKE, "cluster.options={name: x}"])


@pytest.mark.system
def test_why_an_actor_waits() -> None:
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    from sweeprof.cluster.ray_process import why_it_waits

    node = {"Resources": {"CPU": 4.0, "memory": 1e9, "fast_disk": 1.0}, "Labels": {"zone": "a"}}
    assert why_it_waits({"num_cpus": 4, "resources": {"fast_disk": 1}, "label_selector": {"zone": "a"}}, [node]) == ""
    assert why_it_waits({"num_cpus": 8}, [node]) == "no node has CPU=8"
    assert why_it_waits({"num_cpus": 1, "num_gpus": 2, "label_selector": {"zone": "b"}}, [node]) == (
        "no node has CPU=1, GPU=2, zone=b"
    )
