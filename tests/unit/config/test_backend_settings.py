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
LITERT = "litert does not support precision=bf16: its converter has no bfloat16"
ONLY_TORCHAO = "torch does not support precision_method={} for precision=int8 (only torchao)"
OPSET = "torch does not support opset={} (only the default, 23)"


def planned(*arguments: str, configs: Path | None = None) -> Plan:
    return planning.planned(["metrics=latency", "tracking=none", *arguments], configs)


def reasons(plan: Plan, *axes: str) -> dict[Any, str | None]:
    """Why a combination cannot be measured, by its values of these axes."""
    return {tuple(c.axes[axis] for axis in axes): c.unsupported for c in plan.combinations}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("onnxruntime,torch channels_last=false,true", {
            ("onnxruntime", False): None,
            ("onnxruntime", True): "onnxruntime does not support channels_last=true (only the default, false)",
            ("torch", False): None,
            ("torch", True): None,
        }),
        ("tensorflow,torch compile=false,true", {
            ("tensorflow", False): None,
            ("tensorflow", True): "tensorflow does not support compile=true (only the default, false)",
            ("torch", False): None,
            ("torch", True): None,
        }),

        ("torch,onnxruntime opset=18,23", {
            ("torch", 18): OPSET.format(18), ("torch", 23): None, ("onnxruntime", 18): None, ("onnxruntime", 23): None,
        }),
        ("torch,tensorflow,jax mode=eager,xla", {
            ("torch", "eager"): "torch has no setting 'mode'",
            ("torch", "xla"): "torch has no setting 'mode'",
            ("tensorflow", "eager"): None,
            ("tensorflow", "xla"): None,
            ("jax", "eager"): None,
            ("jax", "xla"): "jax does not support mode=xla (only jit, eager)",
        }),
    ],
)  # fmt: skip
def test_what_a_backend_does_not_support(arguments: str, expected: dict[Any, str | None]) -> None:
    backends, setting = arguments.split()
    plan = planned("model=lenet5", f"backend={backends}", f"backend.{setting}")
    assert reasons(plan, "backend", f"backend.{setting.partition('=')[0]}") == expected


def test_backends_have_one_vocabulary_of_precisions() -> None:
    backends = "torch,torch_compile,tensorflow,jax,onnxruntime,litert"
    plan = planned("model=lenet5", f"backend={backends}", "backend.precision=fp32,fp16,bf16,int8")
    unsupported = {key: reason for key, reason in reasons(plan, "backend", "backend.precision").items() if reason}
    assert unsupported == {("onnxruntime", "bf16"): NO_BF16, ("litert", "bf16"): LITERT}
    assert len(plan.combinations) == 24


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("backend=torch_compile compile_mode=null,max-autotune,reduce-overhead device=cpu", {
            None: None,
            "max-autotune": None,
            "reduce-overhead": "compile_mode=reduce-overhead launches CUDA graphs, and device=cpu has none",
        }),
        ("backend=torch_compile compile=inductor,cudagraphs device=cpu", {
            "inductor": None, "cudagraphs": "compile=cudagraphs launches CUDA graphs, and device=cpu has none",
        }),
        ("backend=torch_compile compile=inductor,openvino device=cpu backend.compile_mode=max-autotune", {
            "inductor": None, "openvino": "compile_mode=max-autotune is a mode of inductor, not of compile=openvino",
        }),
        ("backend=torch compile_dynamic=null,false device=cpu", {
            None: None, False: "compile_dynamic=false needs backend.compile=true: the model is not compiled",
        }),
        ("backend=torch matmul_precision=highest,medium device=cpu", {"highest": None, "medium": None}),
    ],
)  # fmt: skip
def test_how_a_model_is_compiled(arguments: str, expected: dict[Any, str | None]) -> None:
    backend, setting, *more = arguments.split()
    plan = planned("model=lenet5", backend, f"backend.{setting}", *more)
    assert {key: reason for (key,), reason in reasons(plan, f"backend.{setting.partition('=')[0]}").items()} == expected


@pytest.mark.parametrize("settings", [{"compile": "cudagraphs"}, {"compile": True, "compile_mode": "reduce-overhead"}])
def test_cuda_graphs_on_cuda(settings: dict[str, object]) -> None:
    assert uncompilable_reason(settings, "cuda:1") is None


def test_precisions_that_only_some_devices_have() -> None:
    """Planned without torch; other backends do not have them at all."""
    plan = planned("model=lenet5", "backend=torch,onnxruntime", "backend.precision=int4,fp8", "device=cpu")
    lacking = "onnxruntime does not support precision={}: it is not implemented"
    assert reasons(plan, "backend", "backend.precision") == {
        ("torch", "int4"): None,
        ("torch", "fp8"): "precision=fp8 has no kernels for device=cpu (only for cuda, xpu)",
        ("onnxruntime", "int4"): lacking.format("int4"),
        ("onnxruntime", "fp8"): lacking.format("fp8"),
    }
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
