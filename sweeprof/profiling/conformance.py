"""Checks of an accelerator: models of the zoo on it and on the CPU, measured by the code that users run.

The doctor and ``tests/gpu`` run them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeprof.backends import backend_named
from sweeprof.errors import SweeprofError, Unsupported
from sweeprof.numbers import rounded
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.record import Protocol

if TYPE_CHECKING:
    import torch


MODELS = ("mlp", "lenet5", "digits_resnet")
BATCH, SIZE = 8, 32
OUTPUTS_APART = 1e-2
"""Maximum difference of outputs and gradients from the CPU's, as a fraction of the largest: TF32 has 10 bits."""
HALF_APART = 5e-2
"""With bfloat16, which has 7."""
COVERED = (0.5, 1.5)
"""Share of a step that the times of its layers may add up to."""
PROTOCOL = Protocol(min_s=0.05, warmup_s=0.05, min_samples=10)


class Failed(SweeprofError):
    """The device does not do what the CPU does."""


def _module(name: str) -> torch.nn.Module:
    made: Any = import_module(f"sweeprof.zoo.{name}").torch_model().eval()
    return made  # type: ignore[no-any-return]


def _batch() -> torch.Tensor:
    import torch

    return torch.linspace(0, 1, BATCH * SIZE * SIZE).reshape(BATCH, 1, SIZE, SIZE)


def _profiler(name: str, device: str, **options: Any) -> Profiler:
    module = copy.deepcopy(_module(name)).to(device)
    return Profiler(module, inputs=_batch(), protocol=PROTOCOL, progress=False, **options)


def _value(profiler: Profiler, metric: str) -> float:
    found = profiler.compute(metric)
    if found.value is None:
        raise Unsupported(f"{metric}: {found.reason}")
    return float(found.value)


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.detach().float().cpu() - expected.detach()).abs().max() / expected.detach().abs().max())


def _counts(device: str) -> str:
    for name in MODELS:
        for metric in ("params/total", "compute/macs", "compute/flops"):
            here, expected = _value(_profiler(name, device), metric), _value(_profiler(name, "cpu"), metric)
            if here != expected:
                raise Failed(f"{metric} of {name}: {here:g}, on the CPU {expected:g}")
    return f"parameters, MACs and FLOPs of {', '.join(MODELS)} are those of the CPU"


def _outputs(device: str) -> str:
    apart = 0.0
    for name in MODELS:
        each = _apart(_module(name).to(device)(_batch().to(device)), _module(name)(_batch()))
        if not each <= OUTPUTS_APART:  # or NaN
            raise Failed(f"outputs of {name} differ from the CPU's by {each:.2g} of the largest")
        apart = max(apart, each)
    return f"at most {apart:.1g} of the largest output from the CPU's"


def _gradients(device: str) -> str:
    gradients: list[list[torch.Tensor | None]] = []
    for place in (device, "cpu"):
        module = _module(MODELS[-1]).to(place)
        module(_batch().to(place)).square().mean().backward()
        gradients.append([parameter.grad for parameter in module.parameters()])
    apart = 0.0
    for here, expected in zip(*gradients, strict=True):
        if here is None or expected is None:
            continue
        each = _apart(here, expected)
        if not each <= OUTPUTS_APART:  # or NaN
            raise Failed(f"gradients differ from the CPU's by {each:.2g} of the largest")
        apart = max(apart, each)
    return f"at most {apart:.1g} of the largest gradient from the CPU's"


def _bfloat16(device: str) -> str:
    import torch

    outputs = _module("mlp").to(device, torch.bfloat16)(_batch().to(device, torch.bfloat16))
    apart = _apart(outputs, _module("mlp")(_batch()))
    if not apart <= HALF_APART:
        raise Failed(f"outputs in bfloat16 differ from the CPU's in float32 by {apart:.2g} of the largest")
    return f"at most {apart:.1g} of the largest output from the CPU's in float32"


def _forward(device: str) -> str:
    profiler = _profiler(MODELS[-1], device)
    return f"{rounded(_positive(profiler, 'latency/forward'), 's')} for {BATCH} samples of {MODELS[-1]}"


def _training(device: str) -> str:
    profiler = _profiler(MODELS[-1], device, mode="training")
    times = {name: _positive(profiler, f"latency/{name}") for name in ("forward", "backward", "update")}
    phases, whole = sum(times.values()), _positive(profiler, "latency/iteration")
    if phases > 1.5 * whole:
        raise Failed(f"the phases take {rounded(phases, 's')}, the whole iteration {rounded(whole, 's')}")
    return ", ".join(f"{name} {rounded(value, 's')}" for name, value in times.items())


def _layers(device: str) -> str:
    times: Any = _profiler(MODELS[-1], device).seen("layer_times")
    covered = times.forward_covered
    if covered is None:
        raise Failed("no step was without probes")
    if not COVERED[0] <= covered <= COVERED[1]:
        raise Failed(f"the times of the layers add up to {covered:.0%} of the step")
    return f"the times of the layers add up to {covered:.0%} of the step"


def _operators(device: str) -> str:
    found: Any = _profiler(MODELS[-1], device).seen("operators")
    times = [row.device_self_s for row in found.rows if row.device_self_s is not None]
    if not times:
        raise Unsupported("PyTorch's profiler records no times of this device")
    if not sum(times) > 0:
        raise Failed("every operator takes no time on the device")
    return f"{len(times)} operators take {rounded(sum(times), 's')} on the device"


def _transfers(device: str) -> str:
    profiler = _profiler(MODELS[-1], device)
    there, back = _positive(profiler, "latency/h2d"), _positive(profiler, "latency/d2h")
    return f"host to device {rounded(there, 's')}, device to host {rounded(back, 's')}"


def _memory(device: str) -> str:
    profiler = _profiler(MODELS[-1], device)
    peak, size = _value(profiler, "memory/cuda_allocated_peak_bytes"), _value(profiler, "size/params_bytes")
    if peak < size:
        raise Failed(f"the peak is {rounded(peak, 'B')}, less than the parameters' {rounded(size, 'B')}")
    return f"a peak of {rounded(peak, 'B')}, with {rounded(size, 'B')} of parameters"


def _process_memory(device: str) -> str:
    return rounded(_value(_profiler(MODELS[-1], device), "memory/cuda_process_peak_bytes"), "B")


def _lines(device: str) -> str:
    found: Any = _profiler(MODELS[-1], device).seen("lines")
    if found.memory_reason is not None:
        raise Unsupported(found.memory_reason)
    allocated = sum(line.allocated_bytes or 0 for function in found.functions for line in function.lines)
    return f"{rounded(allocated, 'B')} by the lines of a forward"


def _positive(profiler: Profiler, metric: str) -> float:
    value = _value(profiler, metric)
    if not value > 0:
        raise Failed(f"{metric} is {value:g}")
    return value


CHECKS: Mapping[str, Callable[[str], str]] = {
    "counts": _counts,
    "outputs": _outputs,
    "outputs in bfloat16": _bfloat16,
    "gradients": _gradients,
    "time of a forward": _forward,
    "times of a training step": _training,
    "times of layers": _layers,
    "times of operators": _operators,
    "times of transfers": _transfers,
    "memory of a step": _memory,
    "memory of the process": _process_memory,
    "memory of source lines": _lines,
}
"""Each returns what was found, or raises :class:`Failed`, or :class:`Unsupported` with the reason."""


def matrix_product(device: str, size: int) -> Callable[[], object]:
    """Return a function that multiplies two square matrices on an accelerator, and returns when it has done so."""
    import torch

    left = torch.linspace(-1, 1, size * size).reshape(size, size).to(device)
    product = torch.empty_like(left)

    def run() -> None:
        torch.mm(left, left, out=product)
        torch.accelerator.synchronize(device)

    return run


def answers(device: str) -> dict[str, tuple[str, str]]:
    """Return by the name of a check ``passed``, ``failed`` or ``not possible``, and what was found or the reason."""
    found: dict[str, tuple[str, str]] = {}
    for name, check in CHECKS.items():
        try:
            found[name] = "passed", check(device)
        except Unsupported as error:
            found[name] = "not possible", str(error)
        except Exception as error:  # a driver may raise anything
            text = " ".join(str(error).split())[:300] or "no message"
            if not isinstance(error, Failed):
                text = f"{type(error).__name__}: {text}"
            found[name] = "failed", text
    return found


def answered(question: Mapping[str, str]) -> dict[str, Any]:
    """Run the checks of a ``device`` in this process; return ``answers``, none for what is a device on no host, or ``trouble``."""
    import torch

    backend = backend_named("torch")
    try:
        torch.device(question["device"])
    except RuntimeError:
        return {"answers": {}}
    if question["device"] not in backend.devices():
        return {"trouble": f"torch has no device {question['device']!r} here. Known: {', '.join(backend.devices())}"}
    return {"answers": answers(question["device"])}
