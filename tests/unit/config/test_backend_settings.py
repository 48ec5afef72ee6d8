"""Settings of backends in sweeps over several: what each of them supports, planned without importing any."""

from __future__ import annotations

import inspect
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support import planning
from support.planning import write_configs
from sweeprof.backends import TARGETS, uncompilable_reason, unsupported_device_reason
from sweeprof.config.signatures import constant_of, signature_of
from sweeprof.plan.plan import Plan

NO_BF16 = (
    "onnxruntime does not support precision=bf16: its provider for the CPU has no kernels for products of bfloat16, "
    "and for other providers none is exported"
)
ONLY_TORCHAO = "torch does not support precision_method={} for precision=int8 (only torchao)"


def planned(*arguments: str, configs: Path | None = None) -> Plan:
    return planning.planned(["metrics=latency", "tracking=none", *arguments], configs)


def reasons(plan: Plan, *axes: str) -> dict[Any, str | None]:
    """Why a combination cannot be measured, by its values of these axes."""
    return {tuple(c.axes[axis] for axis in axes): c.unsupported for c in plan.combinations}


LACKING = "onnxruntime does not support precision={}: it is not implemented"
# A sweep, how many combinations it has, and the values of its axes that cannot be measured
UNSUPPORTED: list[tuple[str, int, dict[tuple[Any, ...], str]]] = [
    ("backend=onnxruntime,torch backend.channels_last=false,true", 4, {
        ("onnxruntime", True): "onnxruntime does not support channels_last=true (only the default, false)",
    }),
    ("backend=tensorflow,torch backend.compile=false,true", 4, {
        ("tensorflow", True): "tensorflow does not support compile=true (only the default, false)",
    }),
    ("backend=torch,onnxruntime backend.opset=18,23", 4, {
        ("torch", 18): "torch does not support opset=18 (only the default, 23)",
    }),
    ("backend=torch,tensorflow,jax backend.mode=eager,xla", 6, {
        ("torch", "eager"): "torch has no setting 'mode'",
        ("torch", "xla"): "torch has no setting 'mode'",
        ("jax", "xla"): "jax does not support mode=xla (only jit, eager)",
    }),
    ("backend=torch,torch_compile,tensorflow,jax,onnxruntime,litert backend.precision=fp32,fp16,bf16,int8", 24, {
        ("onnxruntime", "bf16"): NO_BF16,
        ("litert", "bf16"): "litert does not support precision=bf16: its converter has no bfloat16",
    }),
    # Planned without torch; other backends do not have them at all
    ("backend=torch,onnxruntime backend.precision=int4,fp8 device=cpu", 4, {
        ("torch", "fp8"): "precision=fp8 has no kernels for device=cpu (only for cuda, xpu)",
        ("onnxruntime", "int4"): LACKING.format("int4"),
        ("onnxruntime", "fp8"): LACKING.format("fp8"),
    }),
    # How a model is compiled
    ("backend=torch_compile backend.compile_mode=null,max-autotune,reduce-overhead device=cpu", 3, {
        ("reduce-overhead",): "compile_mode=reduce-overhead launches CUDA graphs, and device=cpu has none",
    }),
    ("backend=torch_compile backend.compile=inductor,cudagraphs device=cpu", 2, {
        ("cudagraphs",): "compile=cudagraphs launches CUDA graphs, and device=cpu has none",
    }),
    ("backend=torch_compile backend.compile=inductor,openvino device=cpu backend.compile_mode=max-autotune", 2, {
        ("openvino",): "compile_mode=max-autotune is a mode of inductor, not of compile=openvino",
    }),
    ("backend=torch backend.compile_dynamic=null,false device=cpu", 2, {
        (False,): "compile_dynamic=false needs backend.compile=true: the model is not compiled",
    }),
    ("backend=torch backend.matmul_precision=highest,medium device=cpu", 2, {}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "combinations", "expected"), UNSUPPORTED)
def test_what_a_backend_does_not_support(
    arguments: str, combinations: int, expected: dict[tuple[Any, ...], str]
) -> None:
    plan = planned("model=lenet5", *arguments.split())
    axes = [word.partition("=")[0] for word in arguments.split() if "," in word]
    assert {values: reason for values, reason in reasons(plan, *axes).items() if reason} == expected
    assert len(plan.combinations) == combinations


def test_what_other_devices_have_is_supported() -> None:
    for settings in ({"compile": "cudagraphs"}, {"compile": True, "compile_mode": "reduce-overhead"}):
        assert uncompilable_reason(settings, "cuda:1") is None
    assert unsupported_device_reason("fp8", "cuda:1", ("cuda", "xpu")) is None
    assert unsupported_device_reason("int8", "mps", ()) is None


def test_a_value_that_a_backend_lacks_is_unsupported_and_the_default_is_measured() -> None:
    plan = planned("backend=torch,onnxruntime", "backend.precision=fp32,bf16")
    (plain,) = planned("backend=onnxruntime").combinations
    fp32, bf16 = (c for c in plan.combinations if c.axes["backend"] == "onnxruntime")
    assert (fp32.id, fp32.config) == (plain.id, plain.config)
    assert bf16.unsupported == NO_BF16
    assert plan.baseline == {"backend": "torch", "backend.precision": "fp32"}
    (again,) = planning.planned(shlex.split(fp32.command)[3:]).combinations
    assert again.id == fp32.id


def test_methods_of_a_precision() -> None:
    """Those of another precision or backend are unsupported; one has no effect on the default, which is planned once."""
    methods = ("backend.precision=fp32,bf16,int8", "backend.precision_method=convert,autocast")
    plan = planned("model=mlp", "backend=torch", *methods)
    assert reasons(plan, "backend.precision", "backend.precision_method") == {
        ("fp32", "convert"): None,
        ("bf16", "convert"): None,
        ("bf16", "autocast"): None,
        ("int8", "convert"): ONLY_TORCHAO.format("convert"),
        ("int8", "autocast"): ONLY_TORCHAO.format("autocast"),
    }
    (repeat,) = plan.excluded
    assert repeat.axes["backend.precision_method"] == "autocast"
    assert repeat.reason.startswith("the same as ")
    assert plan.baseline == {"backend.precision": "fp32", "backend.precision_method": "convert"}
    (one,) = planned("backend=torch", "backend.precision=null", "backend.precision_method=autocast").combinations
    assert "a method needs a precision" in str(one.unsupported)


def test_a_sweep_file_sets_and_sweeps_them_too(tmp_path: Path) -> None:
    axes = "axes: {backend: [torch, onnxruntime], backend.precision: [fp32, bf16]}\n"
    write_configs(tmp_path, {"sweep/s": f"backend: {{channels_last: true}}\n{axes}"})
    found = reasons(planned("+sweep=s", configs=tmp_path), "backend", "backend.precision")
    assert "channels_last=true" in str(found["onnxruntime", "bf16"])
    assert "precision=bf16" in str(found["onnxruntime", "bf16"])
    assert found["torch", "bf16"] is None


# Signatures and literals of backends, read without importing them


def test_a_backend_of_the_user_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = "class MyBackend:\n    threads: int = 1\n    tiles: int = 4\n"
    (tmp_path / "own_backend.py").write_text(
        f"from dataclasses import dataclass\n\n@dataclass\n{fields}print('imported')\n"
    )
    write_configs(tmp_path, {"backend/mine": "_target_: own_backend.MyBackend\nframework: torch\nthreads: 1\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sweeprof.plan.compose.probe", lambda *_, **__: [])
    found = reasons(planned("backend=torch,mine", "backend.tiles=4,8", configs=tmp_path), "backend", "backend.tiles")
    assert found.pop(("torch", 8)) == "torch does not support tiles=8 (only the default, 4)"
    assert set(found.values()) == {None}
    assert "own_backend" not in sys.modules


def test_a_literal_of_a_base_class_is_found_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "class Base:\n    precision_methods = {'fp32': ('convert',)}\n    limit = 3\n"
    (tmp_path / "own_base.py").write_text(base)
    (tmp_path / "own_child.py").write_text("from own_base import Base\nclass Child(Base):\n    limit: int = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [constant_of("own_child.Child", name) for name in ("precision_methods", "limit", "nothing")]
    assert found == [{"fp32": ("convert",)}, 4, None]
    assert not {"own_base", "own_child"} & sys.modules.keys()


LIGHT = ("sweeprof.backends.fake.FakeBackend", "sweeprof.backends.fake.FakeModel", "sweeprof.zoo.mlp.torch_model")
"""Without a framework."""


@pytest.mark.parametrize(
    "target", [*LIGHT, *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS if "fake" not in t)]
)
def test_signatures_are_those_of_python(target: str) -> None:
    module, _, name = target.rpartition(".")
    signature = signature_of(target)
    assert signature is not None
    assert list(signature.arguments) == list(inspect.signature(getattr(import_module(module), name)).parameters)
