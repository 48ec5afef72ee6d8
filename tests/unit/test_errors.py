"""What errors say: hints of what a user may have meant, and where in the user's code an exception was raised."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate

from sweeprof.errors import Problem, choice_problem, definition_of, described, key_problem, location_of, nearest

# Hints


KEYS = "axes batch_size metrics metrics.select metrics.strict backend.preload backend.threads protocol.rounds".split()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("axis", "axes"),
        ("bathc_size", "batch_size"),
        ("protcol.rounds", "protocol.rounds"),
        ("metrics.functions", None),
        ("backend.thread", "backend.threads"),
        ("threads", "backend.threads"),
        ("device.threads", "backend.threads"),
    ],
)
def test_a_key_is_hinted_at_where_its_own_name_is_alike(key: str, nearest: str | None) -> None:
    assert key_problem(key, 1, KEYS).nearest == nearest


@pytest.mark.parametrize(
    ("word", "options", "meant"),
    [
        ("modle", ["mode", "model", "module"], "model"),  # exchanged letters, before a missing one
        ("tset", ["set", "test", "reset"], "test"),
        ("zzz", ["mode", "model"], None),
    ],
)
def test_exchanged_letters_are_one_slip(word: str, options: list[str], meant: str | None) -> None:
    assert nearest(word, options) == meant


def test_the_suggestion_comes_before_a_list_that_stays_short() -> None:
    names = [f"family{i}/metric{j}" for i in range(20) for j in range(10)]
    message = str(choice_problem("metrics.select", "family7/metrc3", "metric", names))
    said = "metrics.select: 'family7/metrc3' is not a metric. Did you mean 'family7/metric3'? Known: "
    assert message.startswith(said)
    assert message.endswith(" and 192 more.")
    assert len(message) < 300


def test_the_place_in_a_file_comes_first() -> None:
    problem = Problem("axes", {}, "is empty.", source="conf/sweep/mine.yaml:7")
    assert str(problem) == "conf/sweep/mine.yaml:7: axes: {} is empty."


# Places in the user's code


MODULE = """
import json

class Model:
    def __init__(self, text):
        self.config = json.loads(text)

def calls(function):
    function()

def replaces():
    try:
        {}["width"]
    except KeyError as error:
        raise ValueError("no width") from error

def hides():
    try:
        calls(lambda: 1 / 0)
    except ZeroDivisionError:
        raise RuntimeError("division failed") from None

class Silent(Exception):
    def __str__(self):
        raise TypeError("no text")

def silent():
    raise Silent()
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's in the working directory, and a package installed in ``site-packages``."""
    installed = tmp_path / "lib" / "site-packages"
    for package, body in (("traced_nets", "def build():\n    raise ValueError('bad depth')\n"), ("keras", "")):
        (installed / package).mkdir(parents=True)
        (installed / package / "__init__.py").write_text(body)
    (tmp_path / "traced_user.py").write_text(MODULE)
    for name in ("traced_user", "traced_nets", "traced_typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("traced_user")


def error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each test says which
        call()
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]  # without this file, which is a user's too
    return error


@pytest.mark.parametrize(
    ("target", "arguments", "said"),
    [
        (
            *("traced_user.Model", {"text": "{"}),
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "(traced_user.py:6 in __init__)",
        ),
        ("traced_user.replaces", {}, "ValueError: no width (traced_user.py:15 in replaces)"),
        ("traced_user.hides", {}, "RuntimeError: division failed (traced_user.py:21 in hides)"),
        ("traced_user.silent", {}, "Silent: (its message raised TypeError) (traced_user.py:28 in silent)"),
        # An installed package is named where no frame is in the user's files.
        ("traced_nets.build", {}, "ValueError: bad depth (lib/site-packages/traced_nets/__init__.py:2 in build)"),
        # Where Hydra cannot call the target.
        (*("traced_user.Model", {"width": 3}), "TypeError: Model.__init__() got an unexpected keyword argument 'width'"),
    ],
)  # fmt: skip
def test_the_deepest_frame_of_the_users_code_is_named(user: Any, target: str, arguments: Any, said: str) -> None:
    assert described(error_of(lambda: instantiate({"_target_": target, **arguments}))) == said


def test_a_library_that_wraps_the_error_does_not_hide_it() -> None:
    """As where a framework raises an error of its own, without the user's frames, from the user's."""

    def wrap() -> None:
        try:
            int("x")
        except ValueError as error:
            raised = RuntimeError("tracing failed")
            raise raised.with_traceback(None) from error

    error = error_of(wrap)
    error.__traceback__ = None
    assert location_of(error) == f"{Path(__file__).relative_to(Path.cwd())}:{wrap.__code__.co_firstlineno + 2} in wrap"


def test_the_users_frames_that_a_compiler_keeps_beside_the_traceback(user: Any) -> None:
    """As ``torch.compile`` does, which reads a forward without running it."""
    error = RuntimeError("shapes differ")
    library = f"{user.__file__.rpartition('/')[0]}/lib/site-packages/torch/linear.py"
    frames = [(user.__file__, 9, "calls", None), (library, 3, "forward", None)]
    error.real_stack = traceback.StackSummary.from_list(frames)  # type: ignore[attr-defined]
    assert described(error) == "RuntimeError: shapes differ (traced_user.py:9 in calls)"


def test_a_module_that_cannot_be_imported_comes_with_its_line_and_the_search_path(user: Any, tmp_path: Path) -> None:
    Path("traced_typo.py").write_text("import json\nimport no_such_package\n")
    said = described(error_of(lambda: instantiate({"_target_": "traced_typo.Net"})))
    missing = "ModuleNotFoundError: No module named 'no_such_package' (traced_typo.py:2 in <module>); sys.path: "
    assert said.startswith(missing)
    assert str(tmp_path) in said
    assert "Error locating target" not in said
    Path("traced_typo.py").write_text("def (:\n")
    importlib.invalidate_caches()
    said = described(error_of(lambda: instantiate({"_target_": "traced_typo.Net"})))
    assert said.startswith("SyntaxError: ")
    assert said.endswith("(traced_typo.py:1)")


def test_the_message_behind_a_heading(user: Any) -> None:
    error = RuntimeError('Error(s) in loading state_dict for Net:\n\tMissing key(s): "a.weight".\n\tsize mismatch')
    assert described(error) == 'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): "a.weight".'


def test_where_a_function_is_defined(user: Any) -> None:
    assert definition_of(user.replaces) == "traced_user.py:11 in replaces"
    assert definition_of(len) is None
