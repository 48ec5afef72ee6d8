"""The peak of allocations beside an independent measurement: an interposed malloc under plain torch code, see ``step_memory``.

Beside it the estimate of the analysis pass, which shapes alone give; it is one of the first step.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.step_memory import compiler, observed

WITHIN = 0.02
MODELS = ("resnet18", "vit_tiny", "swin_tiny", "densenet121", "mobilenet_v3", "lstm")
MODES = ("inference", "training")
MB = 1e6
_TITLES = ("ours MB", "malloc MB", "ratio", "first MB", "estimate MB", "ratio", "kept by libraries MB")


@pytest.mark.timeout(1200)
@pytest.mark.skipif(compiler() is None, reason="there is no C compiler for the interposed malloc")
@pytest.mark.skipif(
    not (find_spec("timm") and find_spec("torchvision")), reason="timm and torchvision are not installed"
)
def test_the_peak_of_allocations_is_that_of_malloc(tmp_path: Path) -> None:
    print(f"\n{'model':<14}{'mode':<11}" + "".join(f"{title:>{len(title) + 2}}" for title in _TITLES), flush=True)
    off = {}
    for model in MODELS:
        for mode in MODES:
            job = [f"support.memory_models:{model}:{mode}"]
            (own,), (truth,) = observed("ours", job, tmp_path), observed("malloc", job, tmp_path)
            ratio = own["peak"] / truth["peak"]
            figures = (
                f"{own['peak'] / MB:.1f}",
                f"{truth['peak'] / MB:.1f}",
                f"{ratio:.3f}",
                f"{own['first'] / MB:.1f}",
                f"{own['estimate'] / MB:.1f}",
                f"{own['first'] / own['estimate']:.3f}",
                f"{truth['kept'] / MB:.1f}",
            )
            cells = (f"{figure:>{len(title) + 2}}" for title, figure in zip(_TITLES, figures, strict=True))
            print(f"{model:<14}{mode:<11}" + "".join(cells), flush=True)
            if abs(ratio - 1) > WITHIN:
                off[model, mode] = ratio
    assert off == {}
