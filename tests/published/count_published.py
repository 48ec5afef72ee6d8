"""Counts every model of timm and torchvision and compares with what is published: ``make published``.

Prints one line per family and the names that differ, with the reason where it is known.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from published.models import Count, Model, count, timm_models, torchvision_models

KNOWN = {
    "ecaresnext50t_32x4d": "the name has since been given to another model: 15.41 M parameters are published",
    "convmixer_*": "fvcore does not see convolutions with padding='same'",
    "tnt_*": "the model has changed since: it has more parameters than published",
    "hieradet_small": "the model has changed since: it has more parameters than published",
    "vitamin_small_224": "the model has changed since: it has more parameters than published",
    "vit_so150m_patch16_reg4_map_256": "fvcore today finds what is found here",
}
"""Why a figure differs from the published one, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print; 1 where a model could not be counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="*", help="only those whose name matches, e.g. 'resnet*'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    wanted = [m for m in (*timm_models(), *torchvision_models()) if fnmatch.fnmatch(m.name, options.models)]
    counts, failed = _count_all(wanted)
    for source in ("timm", "torchvision"):
        _print_source(source, [c for c in counts if c.model.source == source])
    for name, error in failed:
        print(f"FAILED {name}: {error}")
    print(f"{len(counts)} models in {time.perf_counter() - begin:.0f} s, {len(failed)} failed")
    return 1 if failed else 0


def _count_all(models: Iterable[Model]) -> tuple[list[Count], list[tuple[str, str]]]:
    counts: list[Count] = []
    failed: list[tuple[str, str]] = []
    for index, model in enumerate(models):
        try:
            counts.append(count(model))
        except Exception as error:  # one model that cannot be counted must not hide the others
            failed.append((model.name, f"{type(error).__name__}: {error}"[:200]))
        if index % 100 == 99:
            print(f"{index + 1} …", file=sys.stderr, flush=True)
    return counts, failed


def _print_source(source: str, counts: list[Count]) -> None:
    families: dict[str, list[Count]] = defaultdict(list)
    for counted in counts:
        families[counted.model.family].append(counted)
    print(f"\n{source:<28}{'models':>7}{'published':>10}{'params':>8}{'rounding':>10}{'1 %':>6}{'worst':>9}")
    for family in sorted(families):
        print(_line(family, families[family]))
    print(_line("all", counts))
    for counted in counts:
        remarks = _remarks(counted)
        if remarks:
            print(f"  {counted.model.name}: {remarks}")


def _line(family: str, counts: list[Count]) -> str:
    published = [c for c in counts if c.model.gmacs is not None]
    offs = [c.off or 0.0 for c in published]
    params = sum(bool(c.is_params_exact) for c in published)
    worst = f"{max(offs):.2%}" if offs else "-"
    within = (sum(off == 0 for off in offs), sum(off <= 0.01 for off in offs))
    return f"{family:<28}{len(counts):>7}{len(published):>10}{params:>8}{within[0]:>10}{within[1]:>6}{worst:>9}"


def _remarks(counted: Count) -> str:
    model = counted.model
    remarks = []
    if counted.off and model.gmacs is not None:
        remarks.append(f"{counted.compared / 1e9:.3f} G, published {model.gmacs} ({counted.off:.2%})")
    if counted.is_params_exact is False and model.params is not None:
        remarks.append(f"{counted.params / 1e6:.2f} M parameters, published {model.params / 1e6:.2f}")
    known = next((reason for pattern, reason in KNOWN.items() if fnmatch.fnmatch(model.name, pattern)), None)
    if remarks:
        remarks.append(known or "reason not known")
    if not counted.method.startswith("shapes"):
        remarks.append(counted.method)
    if counted.uncovered:
        remarks.append(f"no formula for {counted.uncovered}")
    return "; ".join(remarks)


if __name__ == "__main__":
    sys.exit(main())
