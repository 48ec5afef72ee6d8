"""A comparison read back from what :meth:`Comparison.to_dict` gave, of this or an earlier version."""

from __future__ import annotations

import dataclasses
from typing import Any

from sweeprof.errors import Damaged
from sweeprof.results.compare import SCHEMA_VERSION, Comparison
from sweeprof.results.record import check_version
from sweeprof.results.validation import damaged, validated


def comparison_from(data: Any) -> Comparison:
    """The comparison; fields that this version does not know are ignored.

    Raises:
        Damaged: the data are not a comparison, or come from a later version.
    """
    if not isinstance(data, dict):
        raise damaged(data, "a comparison of sweeprof")
    check_version(data, "comparison", SCHEMA_VERSION, 1)
    try:
        comparison = validated(Comparison, data)
    except Damaged as error:
        raise Damaged(f"is not a comparison of sweeprof: {error}") from None
    names = [metric.name for metric in comparison.metrics]
    for place, row in enumerate(comparison.rows):
        missing = [name for name in names if name not in row.cells]
        if missing:
            raise damaged(row.cells, f"complete: there is no {missing[0]!r}", ["rows", place, "cells"])
    return dataclasses.replace(comparison, schema_version=SCHEMA_VERSION)
