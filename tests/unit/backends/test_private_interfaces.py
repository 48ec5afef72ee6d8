"""Private interfaces of frameworks: all are in ``private.py`` of a backend, and one that a release lacks makes only those figures
unsupported that need it.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import keras
import pytest

from sweeprof.backends import attribute, interface
from sweeprof.errors import Unsupported

BACKENDS = Path(__file__).parents[3] / "sweeprof" / "backends"
PRIVATE = re.compile(r"\b(keras\.src|tensorflow\.python|tensorflow\.tsl|jax\._src)\b")


def interfaces(path: Path) -> Iterator[str]:
    """Yield the names of all interfaces that a file looks up."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "interface":
            yield ast.literal_eval(node.args[0])


NEEDED_BY_TORCH = (
    "torch._C:DisableTorchFunctionSubclass",
    "torch._library.simple_registry:find_torch_dispatch_rule",
    "torch.autograd:Variable._execution_engine",
    "torch.utils._python_dispatch:_disable_current_modes",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
    "torch.utils._python_dispatch:is_traceable_wrapper_subclass_type",
)
"""Without these, this release does not run a training step."""
OF_TORCH = [
    name for name in interfaces(BACKENDS / "torch" / "private.py") if ":" in name and name not in NEEDED_BY_TORCH
]


def test_no_other_file_uses_one() -> None:
    for path in sorted(BACKENDS.glob("*/*.py")):
        if path.name == "private.py":
            continue
        text = path.read_text()
        assert not PRIVATE.findall(text), path
        code = ast.unparse(_NoTexts().visit(ast.parse(text)))  # without comments and texts
        assert not re.findall(r"\btorch(?:\.[a-z]\w*)*\._[a-zA-Z]\w*", code), path


class _NoTexts(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node


@pytest.mark.parametrize("name", ["torch._C:_gone", "torch._gone", "keras.src.no_such:thing", "keras.src.backend:gone"])
def test_a_missing_one_says_so_however_it_is_used(name: str) -> None:
    missing = interface(name)
    package = name.partition(".")[0]
    reason = f"{package} {import_module(package).__version__} has no {name.replace(':', '.')}, a private interface"
    for use in (missing, lambda: missing.Allocation, lambda: isinstance(1, (str, missing))):
        with pytest.raises(Unsupported, match=re.escape(reason)):
            use()


def test_a_missing_attribute_says_so() -> None:
    with pytest.raises(Unsupported, match=rf"keras {re.escape(keras.__version__)} has no Dense\._gone, a private"):
        attribute(keras.layers.Dense(2), "_gone")


WITHOUT = """
import json, os, sys
from importlib import import_module
import torch

def profile_without(name):
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    delattr(owner, last)
    import sweeprof
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 10))
    quick = sweeprof.Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)
    profile = sweeprof.profile(model, (2, 3, 8, 8), sys.argv[2].split(), protocol=quick, mode="training")
    return {name: profile[name].value if profile[name].value is not None else profile[name].reason for name in sys.argv[2].split()}

for name in sys.argv[3:]:
    if not os.fork():
        with open(os.path.join(sys.argv[1], name.rpartition(".")[2]), "w") as file:
            json.dump(profile_without(name), file)
        os._exit(0)
    os.wait()
"""
METRICS = """latency/forward params/total compute/macs memory/act_peak_live_bytes_train memory/alloc_peak_bytes memory/tensors_bytes
layers/slowest_self_s operators/self_s"""


@pytest.mark.thorough
def test_a_release_that_lacks_one(tmp_path: Path) -> None:
    """What the model's time needs is public; every other figure is there, or says what is missing."""
    subprocess.run([sys.executable, "-c", WITHOUT, tmp_path, METRICS, *OF_TORCH], check=True, timeout=280)
    for name in OF_TORCH:
        found = json.loads((tmp_path / name.rpartition(".")[2]).read_text())
        assert found["latency/forward"] > 0
        missing = f"has no {name.replace(':', '.')}, a private interface that this needs"
        assert [value for value in found.values() if isinstance(value, str) and missing not in value] == []
