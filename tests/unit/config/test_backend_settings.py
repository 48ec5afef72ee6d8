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
from sweeprof.backends import TARGETS
from sweeprof.config.signatures import constant_of, signature_of
from sweeprof.errors import UserError
from sweeprof.plan.plan import Plan

MINE = """
from dataclasses import dataclass

@dataclass
class MyBackend:
    threads: int = 1
    tiles: int = 4
"""


NO_BF16 = (
    "onnxruntime does not support precision=bf16: its provider for the CPU has no kernels for products of bfloat16, "
    "and for other providers none is exported"
)


def planned(*arguments: str, configs: Path | None = None) -> Plan:
    return planning.planned(["metrics=latency", "tracking=none", *arguments], configs)


def reasons(plan: Plan, *axes: str) -> dict[Any, str | None]:
    """Why a combination cannot be measured, by its values of these axes."""
    return {tuple(c.axes[axis] for axis in axes): c.unsupported for c in plan.combinations}


def test_a_precision_that_a_backend_lacks_is_unsupported_and_the_default_is_measured() -> None:
    plan = planned("backend=torch,onnxruntime", "backend.precision=fp32,bf16")
    assert reasons(plan, "backend", "backend.precision") == {
        ("torch", "fp32"): None,
        ("torch", "bf16"): None,
        ("onnxruntime", "fp32"): None,
        ("onnxruntime", "bf16"): NO_BF16,
    }
    (plain,) = planned("backend=onnxruntime").combinations
    fp32 = next(c for c in plan.combinations if c.axes["backend"] == "onnxruntime" and c.unsupported is None)
    assert (fp32.id, fp32.config) == (plain.id, plain.config)
    assert plan.baseline == {"backend": "torch", "backend.precision": "fp32"}
    for combination in plan.combinations:
        if combination.unsupported is None:
            (again,) = planning.planned(shlex.split(combination.command)[3:]).combinations
            assert again.id == combination.id


@pytest.mark.parametrize(
    ("backend", "setting", "values", "reason"),
    [
        (
            "onnxruntime",
            "channels_last",
            "false,true",
            "onnxruntime does not support channels_last=true (only the default, false)",
        ),
        ("tensorflow", "compile", "false,true", "tensorflow does not support compile=true (only the default, false)"),
        ("litert", "precision", "fp32,bf16", "litert does not support precision=bf16: its converter has no bfloat16"),
        ("fake", "precision", "fp32,bf16", "fake does not support precision=bf16 (only the default, fp32)"),
    ],
)  # fmt: skip
def test_values_beside_torch(backend: str, setting: str, values: str, reason: str) -> None:
    model = "model=fake" if backend == "fake" else "model=mlp"
    plan = planned(model, f"backend={backend},torch", f"backend.{setting}={values}")
    found = [c.unsupported for c in plan.combinations if c.axes["backend"] == backend]
    assert found == [None, reason]


@pytest.mark.parametrize("backend", ["torch", "torch_compile", "onnxruntime", "litert", "tensorflow", "jax"])
def test_every_precision_on_every_backend_is_planned(backend: str) -> None:
    """In one vocabulary; what a backend does not support has a reason."""
    found = reasons(
        planned("model=lenet5", f"backend={backend}", "backend.precision=fp32,fp16,bf16,int8"), "backend.precision"
    )
    is_lacking = backend in ("onnxruntime", "litert")
    for precision in ("fp32", "fp16", "bf16", "int8"):
        assert (found[(precision,)] is None) == (precision != "bf16" or not is_lacking)
    if is_lacking:
        assert f"{backend} does not support precision=bf16: its" in str(found[("bf16",)])


def test_methods_of_a_precision() -> None:
    """Those of another precision or backend are unsupported; one has no effect on the default, which is planned once."""
    plan = planned(
        "model=mlp", "backend=torch", "backend.precision=fp32,bf16,int8", "backend.precision_method=convert,autocast"
    )
    assert reasons(plan, "backend.precision", "backend.precision_method") == {
        ("fp32", "convert"): None,
        ("bf16", "convert"): None,
        ("bf16", "autocast"): None,
        (
            "int8",
            "convert",
        ): "torch does not support precision_method=convert for precision=int8 (only torchao)",
        (
            "int8",
            "autocast",
        ): "torch does not support precision_method=autocast for precision=int8 (only torchao)",
    }
    (repeat,) = plan.excluded
    assert repeat.axes["backend.precision_method"] == "autocast"
    assert repeat.reason.startswith("the same as ")
    assert plan.baseline == {"backend.precision": "fp32", "backend.precision_method": "convert"}
    (combination,) = planned(
        "backend=torch", "backend.precision=null", "backend.precision_method=autocast"
    ).combinations
    assert combination.unsupported is not None
    assert "a method needs a precision" in combination.unsupported


def test_settings_of_other_backends_beside_torch() -> None:
    found = reasons(planned("backend=torch,onnxruntime", "backend.opset=18,23"), "backend", "backend.opset")
    assert found.pop(("torch", 18)) == "torch does not support opset=18 (only the default, 23)"
    assert set(found.values()) == {None}
    found = reasons(planned("backend=torch,tensorflow,jax", "backend.mode=eager,xla"), "backend", "backend.mode")
    assert found == {
        ("torch", "eager"): "torch has no setting 'mode'",
        ("torch", "xla"): "torch has no setting 'mode'",
        ("tensorflow", "eager"): None,
        ("tensorflow", "xla"): None,
        ("jax", "eager"): None,
        ("jax", "xla"): "jax does not support mode=xla (only jit, eager)",
    }


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_a_setting_with_one_value_for_all_backends(values: str) -> None:
    found = reasons(planned("backend=torch,onnxruntime", f"backend.precision={values}"), "backend")
    assert found[("torch",)] is None
    assert (found[("onnxruntime",)] is None) == (values == "fp32")
    assert reasons(planned("backend=onnxruntime,torch", "backend.opset=20"), "backend")[("torch",)] is not None


def test_a_sweep_file_sets_and_sweeps_them_too(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "s.yaml").write_text(
        "backend: {channels_last: true}\naxes: {backend: [torch, onnxruntime], backend.precision: [fp32, bf16]}\n"
    )
    found = reasons(planned("+sweep=s", configs=tmp_path), "backend", "backend.precision")
    reason = found[("onnxruntime", "bf16")]
    assert reason is not None
    assert "channels_last=true" in reason
    assert "precision=bf16" in reason
    assert found[("torch", "bf16")] is None


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ["backend=torch,onnxruntime", "backend.precison=fp32,bf16"],
            ["backend.precison: 'fp32,bf16' is given to a key that does not exist. Did you mean 'backend.precision'?"],
        ),
        (
            ["backend=torch,onnxruntime", "backend.precison=fp32"],
            ["backend.precison: 'fp32'", "Did you mean 'backend.precision'?"],
        ),
        (
            ["backend=fake", "model=fake", "backend.precision=fp32,bf16"],
            ["backend.precision: 'fp32,bf16' is given to a key that does not exist."],
        ),
        (
            ["backend=tensorflow,jax", "backend.mode=eager,egaer"],
            ["backend.mode: 'egaer' is not a mode. Did you mean 'eager'? Known: eager, function, jit, xla."],
        ),
        (
            ["backend=torch,onnxruntime", "backend.precision=bf61"],
            ["backend.precision: 'bf61' is not a precision. Did you mean 'bf16'?"],
        ),
        (
            ["backend=torch", "backend.compile=inductor,openvin"],
            [
                "backend.compile: 'openvin' is not true, false or a compiler. Did you mean 'openvino'? Known: inductor, openvino,"
            ],
        ),
        (["backend=onnxruntime", "backend.opset=new"], ["backend.opset: 'new' is not a whole number."]),
        (
            ["backend=jax,torch", "backend.compil=true,false", "batch_size=0,1"],
            ["Did you mean 'backend.compile'?", "batch_size: 0 is not a batch size"],
        ),
    ],
)  # fmt: skip
def test_mistakes(arguments: list[str], messages: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        planned(*arguments)
    for message in messages:
        assert message in str(raised.value)


def test_a_backend_of_the_user_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend").mkdir()
    (tmp_path / "own_backend.py").write_text(f"{MINE}\nprint('imported')\n")
    (tmp_path / "backend" / "mine.yaml").write_text("_target_: own_backend.MyBackend\nframework: torch\nthreads: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sweeprof.plan.compose.probe", lambda *_, **__: [])
    found = reasons(planned("backend=torch,mine", "backend.tiles=4,8", configs=tmp_path), "backend", "backend.tiles")
    assert found.pop(("torch", 8)) == "torch does not support tiles=8 (only the default, 4)"
    assert set(found.values()) == {None}
    assert "own_backend" not in sys.modules


def test_a_literal_of_a_base_class_is_found_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_base.py").write_text(
        "class Base:\n    precision_methods = {'fp32': ('convert',)}\n    limit = 3\n"
    )
    (tmp_path / "own_child.py").write_text("from own_base import Base\nclass Child(Base):\n    limit: int = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert constant_of("own_child.Child", "precision_methods") == {"fp32": ("convert",)}
    assert constant_of("own_child.Child", "limit") == 4
    assert constant_of("own_child.Child", "nothing") is None
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
