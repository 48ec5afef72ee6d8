"""Functions by their names, and their source lines."""

from __future__ import annotations

import functools
import inspect
import json.decoder
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.line_profile import functions_named, python_function, qualified, source_lines


def problem(name: str, *classes: type) -> Problem:
    with pytest.raises(UserError) as raised:
        functions_named([name], classes)
    (found,) = raised.value.problems
    assert (found.key, found.value) == ("metrics.functions", name)
    return found


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Odd:
    """Functions in every wrapping."""

    @wrapping
    @wrapping
    def wrapped(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @property
    def property(self) -> None: ...

    @functools.cached_property
    def cached(self) -> None: ...

    @functools.lru_cache  # noqa: B019  # is never called
    def remembered(self) -> None: ...


def test_modules_and_classes_nest() -> None:
    names = ["json.dumps", "json.decoder.JSONDecoder.decode"]
    dumps, decode = functions_named(names)
    assert dumps is json.dumps
    assert decode is json.decoder.JSONDecoder.decode
    assert qualified(decode) == names[1]


def test_a_function_is_watched_once() -> None:
    assert functions_named(["json.decoder.JSONDecoder.decode", "json.JSONDecoder.decode"]) == [json.JSONDecoder.decode]


@pytest.mark.parametrize("name", ["wrapped", "static", "of_class", "property", "cached", "remembered"])
def test_wrappings_are_followed_to_the_code(name: str) -> None:
    (found,) = functions_named([f"Odd.{name}"], [Odd])
    assert found.__code__.co_name == name


def test_methods_and_partials_are_followed_to_the_code() -> None:
    for called in (Odd().wrapped, functools.partial(Odd.wrapped, None), functools.partial(Odd().wrapped)):
        found = python_function(called)
        assert found is not None
        assert found.__code__.co_name == "wrapped"
    assert python_function(len) is None
    assert python_function(Odd()) is None


def test_a_class_of_the_model_goes_by_its_own_name() -> None:
    class Local:
        def forward(self) -> None: ...

    for name in ("Local.forward", f"{Local.__module__}.{Local.__qualname__}.forward"):
        assert functions_named([name], [Odd, Local, Local]) == [Local.forward]
    assert problem("Local.forwrd", Local).nearest == "Local.forward"
    assert problem("Locall.forward", Local).nearest == "Local.forward"


def test_a_wrong_name_is_told_with_what_comes_nearest() -> None:
    assert str(problem("json.decoder.JSONDecoder.decoded")) == (
        "metrics.functions: 'json.decoder.JSONDecoder.decoded' does not exist: json.decoder.JSONDecoder has no 'decoded'. "
        "Did you mean 'json.decoder.JSONDecoder.decode'?"
    )
    assert problem("json.decodr.JSONDecoder").nearest == "json.decoder"
    for name in ("no_such_package.f", "no_dots", "", ".json.dumps", "json..dumps"):
        assert "is not the dotted name of a function" in problem(name).allowed
    assert problem("json.decoder").allowed == "is a module, not a function."
    assert problem("json.decoder.JSONDecoder").allowed == "is a class, not a function."


def test_all_wrong_names_are_told_at_once() -> None:
    with pytest.raises(UserError) as raised:
        functions_named(["json.dumpt", "json.dumps", "json.JSONDecoder"])
    assert [one.value for one in raised.value.problems] == ["json.dumpt", "json.JSONDecoder"]


def test_a_module_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaking_module.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "missing_module.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    assert "breaking_module raised RuntimeError: at import" in problem("breaking_module.f").allowed
    assert "No module named 'not_there_at_all'" in problem("missing_module.f").allowed


def test_a_function_in_c_is_no_mistake_but_cannot_be_watched() -> None:
    with pytest.raises(Unsupported, match=r"math\.sqrt has no source lines to watch: it is a builtin"):
        functions_named(["math.sqrt"])


def test_source_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class C:\n\t@property\n\tdef p(self):\n\n\t\tif self:\n\t\t\treturn 1\n\n\tafter = 1\n"
    (tmp_path / "with_source.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = functions_named(["with_source.C.p"])
    assert source_lines(found) == {
        2: "@property",
        3: "def p(self):",
        4: "",
        5: " " * 8 + "if self:",
        6: " " * 16 + "return 1",
    }
    sys.modules.pop("with_source")


def test_without_source_there_are_the_lines_that_can_run() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def f(x):\n\n    y = x\n    return y\n", "<nowhere>", "exec"), scope)
    with pytest.raises(OSError, match="source"):
        inspect.getsource(scope["f"])
    assert source_lines(scope["f"]) == {1: "", 3: "", 4: ""}
