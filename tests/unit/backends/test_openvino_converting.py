"""Models of PyTorch, Keras and ONNX on OpenVINO: converted once, with their layers, and as they compute in their framework."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.onnx_graphs import node, saved
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.targets import instantiate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("converted_in_forks")]

IMAGES = np.random.default_rng(0).standard_normal((6, 1, 32, 32)).astype(np.float32)


def builder(target: str, **arguments: Any) -> Any:
    return partial(instantiate, {"_target_": target, **arguments})


def backend(cache: Path, **settings: Any) -> OpenvinoBackend:
    # By itself OpenVINO computes in bfloat16 where the processor can.
    made = OpenvinoBackend(**{"cache": str(cache), "precision": "fp32", **settings})
    made.configure(0)
    made.ranges_from(lambda limit: Inputs((np.tile(IMAGES, (limit // 6, 1, 1, 1)),)))
    return made


def outputs(runner: OpenvinoBackend, build: Any, images: Any = IMAGES, axis: int | None = 1) -> Any:
    model = runner.load(build, "cpu", axis)
    with model.stepping(model.put(Inputs((images,)))) as step:
        return model.host_outputs(step())


def expected(build: Any) -> Any:
    with torch.inference_mode():
        return build().eval()(torch.from_numpy(IMAGES)).numpy()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


RESNET = builder("sweeprof.zoo.digits_resnet.torch_model")


@pytest.mark.thorough
def test_a_model_of_pytorch_is_converted_once_for_all_batch_sizes(cache: Path) -> None:
    runner, wanted = backend(cache), expected(RESNET)
    outputs(runner, RESNET)
    made = sorted(cache.rglob("*.xml"))
    np.testing.assert_allclose(outputs(runner, RESNET, IMAGES[:2]), wanted[:2], atol=1e-4)
    assert sorted(cache.rglob("*.xml")) == made
    table = runner.analyze(RESNET, Inputs((IMAGES,)), 1, DEFAULTS)
    assert table.buffers == 672
    rows = {row.path: row for row in table.rows}
    assert (rows["stage1.conv1"].type, rows["stage1.conv1"].macs) == ("Conv2d", 6 * 2_359_296)
    assert rows["stage2.bn1"].params == 64


@pytest.mark.parametrize(("precision", "tolerance", "bytes_per_weight"), [("fp16", 0.01, 2), ("int8", 1.0, 1)])
def test_fewer_bits(precision: Any, tolerance: float, bytes_per_weight: int, cache: Path) -> None:
    build = builder("sweeprof.zoo.lenet5.torch_model")
    plain, runner = backend(cache), backend(cache, precision=precision)
    wanted = expected(build)
    found = outputs(runner, build)
    assert 0 < np.abs(found - wanted).max() < tolerance
    tables = [one.analyze(build, Inputs((IMAGES,)), 1, DEFAULTS) for one in (plain, runner)]
    assert [table.macs for table in tables] == [6 * 416_520] * 2
    assert [table.params for table in tables] == [61_706] * 2
    weights = 61_706 - 6 - 16 - 120 - 84 - 10
    assert weights * bytes_per_weight <= tables[1].params_bytes < weights * bytes_per_weight * 1.1 + 4 * 236


def test_a_model_of_keras(cache: Path) -> None:
    """OpenVINO keeps the names of few operators of TensorFlow: layers are found by the values of their weights."""
    build = builder("sweeprof.zoo.digits_resnet.keras_model")
    runner = backend(cache)
    np.testing.assert_allclose(outputs(runner, build), expected(RESNET), atol=1e-4)
    table = runner.analyze(build, Inputs((IMAGES,)), 1, DEFAULTS)
    assert (table.macs, table.uncovered) == (6 * 12_206_720, {})
    macs = {row.path: row.macs for row in table.rows if row.macs}
    assert macs["stage1_conv1"] == 6 * 2_359_296
    assert set(macs) == {name for name in macs if "conv" in name} | {"linear"}


def test_a_file_of_onnx(tmp_path: Path, cache: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    path = saved(tmp_path, [node("MatMul", "x w", "y", "/dense/MatMul")], {"x": (2, 4)}, {"w": weight}, opset=18)
    build = builder("sweeprof.backends.onnxruntime.files.OnnxFile", path=path)  # what model=file makes of an .onnx file
    given = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(outputs(backend(cache), build, given, None), given @ weight, rtol=1e-5)


def test_a_model_in_a_callers_hands_stays_in_its_mode() -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)).train(), torch.ones(3, 4)
    model = OpenvinoBackend(precision="fp32").load(lambda: module, "cpu", None)
    with model.stepping(model.put(Inputs((x,)))) as step:
        np.testing.assert_allclose(model.host_outputs(step()), module[0](x).detach().numpy(), rtol=1e-5)
    assert module.training


def test_a_batch_that_the_tracer_makes_a_constant_of_is_converted_for_each_size() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.zeros(int(x.shape[0]), 2) + x.sum()

    model = OpenvinoBackend().load(Net, "cpu", None)
    model.put(Inputs((torch.ones(5, 4),)))
    assert model.file.batch == 5


def test_what_cannot_be_converted_names_the_operator() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvalsh(x @ x.transpose(-1, -2))

    with pytest.raises(Unsupported, match=r"OpenVINO cannot convert the model: .*aten::linalg_eigvalsh"):
        OpenvinoBackend().load(Net, "cpu", None).put(Inputs((torch.ones(2, 3, 3),)))
