"""Private interfaces of torch: all are in one file, and each exists in the installed release."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "sweeprof/backends/torch"
PRIVATE = FOLDER / "private.py"
OTHERS = [path for path in sorted(FOLDER.glob("*.py")) if path != PRIVATE]


def constants() -> dict[str, ast.expr]:
    """Return what ``private.py`` assigns to each name. The file is not imported: that fails where an interface is missing."""
    found: dict[str, ast.expr] = {}
    for node in ast.parse(PRIVATE.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            found[target.id] = value
    return found


def chains(tree: ast.AST) -> Iterator[str]:
    """Yield every dotted name that begins with ``torch.``, the longest of each."""
    if isinstance(tree, ast.Attribute) and re.fullmatch(r"torch(\.\w+)+", ast.unparse(tree)):
        yield ast.unparse(tree)
        return
    for child in ast.iter_child_nodes(tree):
        yield from chains(child)


CONSTANTS = constants()
TESTED: tuple[str, ...] = ast.literal_eval(CONSTANTS["TESTED"])
INTERFACES = {chain: name for name, value in CONSTANTS.items() for chain in chains(value)}
"""The dotted name of each interface, and the name that ``private.py`` gives it."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Tensor": ("_has_symbolic_sizes_strides", "_indices", "_nnz", "_values", "_version"),
    "UntypedStorage": ("_cdata",),
    "Module": (
        "_buffers",
        "_compiled_call_impl",
        "_modules",
        "_non_persistent_buffers_set",
        "_parameters",
    ),
    "Node": ("_sequence_nr",),
    "OpOverload": ("_can_decompose", "_schema"),
    "flex_attention": ("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", "_validate_device"),
}
"""Private attributes that the files read from objects of torch, by the kind of object."""


def users(pattern: str) -> list[str]:
    """Return the names of the files in which a pattern is found."""
    return [path.name for path in OTHERS if re.search(pattern, path.read_text())]


def broken(interface: str, found: object, name: str, files: list[str]) -> str | None:
    """Return what is wrong with an interface; None if it is there and used."""
    if not files:
        return f"{interface}: no file uses it"
    if hasattr(found, name):
        return None
    return f"torch {torch.__version__} has no {interface}, which {', '.join(files)} needs (tested with torch {', '.join(TESTED)})"


def example(kind: str) -> object:
    """Return an object of a kind in ``ATTRIBUTES``."""
    if kind == "flex_attention":
        return import_module("torch.nn.attention.flex_attention")
    if kind == "Node":
        return (torch.ones(1, requires_grad=True) + 1).grad_fn
    makers = {"Tensor": torch.ones(1), "Module": torch.nn.Module(), "OpOverload": torch.ops.aten.add.Tensor}
    return makers[kind] if kind in makers else torch.ones(1).untyped_storage()


@pytest.mark.parametrize("interface", INTERFACES)
def test_each_interface_exists(interface: str) -> None:
    owner, _, name = interface.rpartition(".")
    found: object = torch
    for part in owner.split(".")[1:]:
        found = getattr(found, part, None)
    assert broken(interface, found, name, users(rf"\b{INTERFACES[interface]}\b")) is None


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_each_attribute_exists(kind: str) -> None:
    found = example(kind)
    messages = [broken(f"{kind}.{name}", found, name, users(rf"[.\"]{name}\b")) for name in ATTRIBUTES[kind]]
    assert [message for message in messages if message] == []


def test_the_message_names_the_interface_the_files_and_the_releases() -> None:
    message = broken("torch._C._gone", torch._C, "_gone", ["callsites.py"])
    assert message == (
        f"torch {torch.__version__} has no torch._C._gone, which callsites.py needs (tested with torch {', '.join(TESTED)})"
    )


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_no_other_file_reads_them(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = [name for name in chains(tree) if "._" in name]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("torch.")]
    assert [name for name in names if "._" in name] == [], "belongs to private.py"


def test_the_releases_that_may_be_installed_end_with_the_tested_ones() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    allowed = Requirement(extras["torch"][0]).specifier
    newest = Version(TESTED[-1])
    assert all(allowed.contains(release) for release in TESTED)
    assert not allowed.contains(f"{newest.major}.{newest.minor + 1}.0"), "a release that no test has run with"
    assert Version(torch.__version__).base_version in TESTED
