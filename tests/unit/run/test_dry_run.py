"""What a dry run prints."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from support.plans import fake_plan
from sweeprof.run.dry_run import print_plan


def test_ids_are_whole_however_many_axes_there_are(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}})
    many = {f"model.fake.argument_{i}": "value" for i in range(6)}
    made = dataclasses.replace(plan.combinations[0], id="c0123456789ab", axes=many)
    out = Console(file=io.StringIO(), width=80)
    shards = ((made.id,),)
    print_plan(
        dataclasses.replace(plan, axes={a: [v] for a, v in many.items()}, combinations=(made,), shards=shards),
        out,
        tmp_path,
    )
    assert "c0123456789ab" in out.file.getvalue()  # type: ignore[attr-defined]
