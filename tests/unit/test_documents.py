"""The documents: their links lead somewhere, their code runs as it is written, and their lists are complete."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache, partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from torch import nn

import sweeprof
from support.planning import planned, write_configs
from sweeprof.cli.common import COMMANDS, command_parser
from sweeprof.cli.run import check_arguments
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import ExitCode
from sweeprof.metrics.metric import builtin_metrics, declared
from sweeprof.profiling.layers import Layers
from sweeprof.results.environment import host_columns

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITH_SWEEPS = [README, *sorted(ROOT.glob("docs/*.md"))]
EARLIER = ("resume=", "compare.baseline=tag:", "model.path=net.xml")
"""Overrides that name an earlier sweep, or a file of the reader's own."""


def blocks(document: Path, language: str) -> list[str]:
    """The contents of the blocks of code in a language."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(document: Path) -> Iterator[list[str]]:
    """The arguments of each ``sweeprof`` in the blocks of shell commands."""
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", "").splitlines():
            if re.match(r"sweeprof( |$)", line) and "…" not in line:
                yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_to_files_of_the_source_package(document: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = [ROOT / name for name in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    for target in re.findall(r"\]\(([^)\s#]+)", document.read_text(encoding="utf-8")):
        if "://" in target or "…" in target:
            continue
        found = (document.parent / target).resolve()
        assert found.exists(), target
        assert any(found.is_relative_to(one) for one in packaged), f"{target} is not in the source package"


def test_the_reference_explains_every_exit_code() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == [str(int(code)) for code in ExitCode]


# The Python of the documents


@pytest.fixture
def _registrations_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples register for every model is forgotten afterwards."""
    builtin_metrics()  # which are declared when they are first asked for
    monkeypatch.setattr("sweeprof.metrics.metric._DECLARED", dict(declared()))
    for kind in ("_modules", "_operators"):
        monkeypatch.setattr(DEFAULTS, kind, dict(getattr(DEFAULTS, kind)))


def test_five_lines_for_your_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    package = ModuleType("my_package")
    package.MyNet = lambda width: nn.Linear(100, width)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_package", package)
    (code,) = blocks(README, "python")
    assert len(code.strip().splitlines()) <= 6  # with the empty line after the imports
    exec(code, {})
    seconds, _, tree = capsys.readouterr().out.partition("\n")
    assert float(seconds) > 0
    assert "Linear" in tree
    assert "205 kMAC" in tree  # 100 · 64 · 32


@pytest.mark.slow
@pytest.mark.usefixtures("_registrations_undone")
def test_the_code_of_the_page_on_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example writes a file
    namespace: dict[str, Any] = {"__name__": "my_script"}
    for code in blocks(ROOT / "docs" / "library.md", "python"):
        exec(code, namespace)
    assert namespace["r"]["params/total"].value == 8 * 27 + 8 + 7200 * 10 + 10
    assert namespace["student"].compute("params/total").value == 3 * 32 * 32 * 10 + 10
    assert namespace["profiler"].is_done
    assert namespace["times"].to_dict() == {1: pytest.approx(0.001), 8: pytest.approx(0.001)}


@pytest.fixture
def _host_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles print the processor and the threads that the documents name."""

    def columns(settings: Mapping[str, object]) -> dict[str, str | int]:
        return {**host_columns(settings), "host_cpu": "AMD EPYC 9654", "host_threads": 8}

    monkeypatch.setattr("sweeprof.profiling.profiler.host_columns", columns)


@pytest.mark.slow
@pytest.mark.usefixtures("_registrations_undone", "_host_of_the_documents")
def test_the_examples_of_the_reference_give_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # not where outputs of sweeps may be
    page = ROOT / "docs" / "api.md"
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    failures: list[str] = []
    doctest.DocTestRunner().run(examples, out=failures.append)
    assert not failures, "".join(failures)


def test_the_reference_has_every_public_name_with_an_example() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    parts = re.split(r"^::: sweeprof\.(\w+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert {*sections, "__version__"} == set(sweeprof.__all__)
    assert [name for name, section in sections.items() if not re.search(r"^>>> ", section, re.MULTILINE)] == []
    assert "sweeprof.__version__" in text


def test_the_page_on_stability_lists_the_experimental_names() -> None:
    text = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    section = text.partition("## Experimental names")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == sweeprof._EXPERIMENTAL <= set(sweeprof.__all__)


# The commands of the documents


@pytest.mark.parametrize("document", [README, *sorted(ROOT.glob("docs/*.md"))], ids=lambda path: path.name)
def test_subcommands_have_the_arguments_that_are_written(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")  # a shell replaces it
    for arguments in commands(document):
        if arguments and arguments[0] in COMMANDS:
            command_parser(arguments[0]).parse_intermixed_args(arguments[1:])
        else:
            check_arguments(arguments)


def planned_sweeps() -> Iterator[Any]:
    """The documents whose sweeps are planned here; the others have tests of their own that run them."""
    for document in WITH_SWEEPS:
        if document.name not in ("models.md", "data.md", "language_models.md", "tutorial.md"):
            marks = pytest.mark.slow if document == README else pytest.mark.thorough
            yield pytest.param(document, id=document.name, marks=marks)


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("document", list(planned_sweeps()))
def test_sweeps_can_be_planned_as_they_are_written(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (metric,) = blocks(ROOT / "docs" / "own-metrics.md", "python")
    model = "import torch\n\n\ndef MyNet(width):\n    return torch.nn.Linear(100, width)\n"
    (tmp_path / "my_package.py").write_text(metric + model, encoding="utf-8")
    files = re.findall(r"^```yaml\n# conf/(\S+)\.yaml\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)
    write_configs(tmp_path / "conf", dict(files))
    sweeps = {tuple(arguments): arguments for arguments in commands(document)}
    for arguments in sweeps.values():
        is_sweep = not arguments or not (arguments[0] in COMMANDS or arguments[0].startswith("-"))
        if is_sweep and not any(argument.startswith(EARLIER) for argument in arguments):
            plan = planned(arguments, tmp_path / "conf" if files else None)
            assert plan.combinations, arguments


# What is made from the code


@pytest.fixture(scope="module")
def site() -> dict[str, Any]:
    return run_path(str(ROOT / "docs" / "generated.py"))


def test_the_generated_parts_of_pages_are_current(site: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", site["WIDTH"])
    made = list(site["pages"]())
    assert {path.name for path, _ in made} == {"commands.md", "config.md", "counting.md", "features.md", "metrics.md"}
    for path, text in made:
        if path.name == "commands.md" and sys.version_info >= (3, 13):
            continue  # whose argparse spells options otherwise
        assert path.read_text(encoding="utf-8") == text, "run: python docs/generated.py"


FEATURES = run_path(str(ROOT / "docs" / "feature_table.py"))


def test_the_table_of_features_is_complete() -> None:
    rows = FEATURES["features"]()
    assert [row.number for row in rows] == [str(number) for number in range(1, 109)]
    for row in rows:
        assert row.status in FEATURES["STATUSES"], row.number
        assert row.note or row.status in ("works", "needs a GPU"), f"{row.number} needs a reason"
        assert (row.status == "not offered") != bool(row.use and row.tests), row.number
    lines = list(FEATURES["table"]())
    assert sum(line.startswith(f"| {row.number} | {row.feature} |") for row in rows for line in lines) == 108


def test_the_tests_of_features_exist_and_run_in_ci() -> None:
    for row in FEATURES["features"]():
        for test in row.tests.split():
            file, _, name = test.partition("::")
            functions = {node.name: node for node in parsed(file).body if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"feature {row.number}: there is no {test}"
            marks = [ast.unparse(mark) for mark in functions[name].decorator_list]
            assert not any(mark.startswith("pytest.mark.thorough") for mark in marks), test


@cache
def parsed(file: str) -> ast.Module:
    """The syntax tree of a file of the repository."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def test_what_the_table_of_features_names_exists() -> None:
    families = {name.partition("/")[0] for name in builtin_metrics()}
    columns = sweeprof.profile(nn.Linear(2, 2), (1, 2)).layers.to_frame().columns
    for row in FEATURES["features"]():
        for code in re.findall(r"`([^`]+)`", row.use):
            if code.startswith("sweeprof "):
                arguments = shlex.split(code)[1:]
                check_arguments(arguments) if arguments[0] not in COMMANDS else command_parser(arguments[0])
            elif code.partition("/")[0] in families:
                assert code in builtin_metrics(), row.number
            elif re.match(r"(layers|profiler|profile|sweeprof)\.", code):
                check_names_in(code)
            else:
                assert code in (*columns, "compute_module_complexity"), row.number


def check_names_in(code: str) -> None:
    """Fail if code such as ``profile.to_frame(host=True)`` names an attribute or argument that does not exist."""
    owners = {"layers": Layers, "profiler": sweeprof.Profiler, "profile": sweeprof.Profile, "sweeprof": sweeprof}
    owner, *names = code.partition("(")[0].split(".")
    found: Any = owners[owner]
    for name in names:
        found = getattr(found, name)
    keywords = re.findall(r"[(,] ?(\w+)=", code.partition(").")[0])
    if keywords and names != ["compute"]:  # the options of a metric are its own
        assert set(keywords) <= set(inspect.signature(found).parameters), code


# The pages for users of other profilers: our code runs and prints what is written, and needs no more lines


PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
MEASURED = re.compile(
    r"\b[\d.,]+(?:e[+-]?\d+)?[ \u202f]?(?:n|µ|u|m)?s\b"  # durations
    r"|\b[\d.]+ [kKMGT]?FLOP/s"  # rates
    r"|\b\d+\.\d{5,}(?:e-\d+)?|\b\d(?:\.\d+)?e-\d+"  # floating-point numbers as Python prints them
)
VARIES = re.compile(r"^(?:Times are|The forward takes|Every (?:forward|backward)|samples/s)")
"""Lines about the measurement itself."""


NOISE = re.compile(
    r"^(?:spread_\w+|first_sample_slow|drift|timer_coarse|max_time) in .*?→.*?(?:a\s+sweep|warmup_steps|sample_s|max_s)\n",
    re.MULTILINE | re.DOTALL,
)
"""Warnings about noisy times, which run over several lines."""


class Titled(NamedTuple):
    """A block of code or output with a title."""

    language: str
    title: str
    text: str


def titled(page: Path) -> list[Titled]:
    pattern = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    return [Titled(*found) for found in pattern.findall(page.read_text(encoding="utf-8"))]


def lines_of_code(code: str) -> int:
    """Lines that are neither empty nor comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def masked(text: str) -> list[str]:
    """Lines up to their first duration or rate, without the rules and spaces of columns, whose width depends on what follows."""
    lines = []
    for line in NOISE.sub("", text).strip().splitlines():
        if not VARIES.match(line):
            before, measured, _ = MEASURED.sub("·", line).partition("·")
            order = re.sub(r"^(\s*(?:forward|backward)): \w+ $", r"\1: ", before)  # the slowest module of a level
            lines.append(re.sub(r"[\s─]+", " ", order + measured).strip())
    return lines


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measurements are short, and files are written to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sweeprof.profiling.profiler.Protocol", partial(sweeprof.Protocol, min_s=0.01, warmup_s=0.01, min_samples=3)
    )


@pytest.mark.usefixtures("_quick", "_host_of_the_documents")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_our_code_prints_what_is_written(page: Path, request: pytest.FixtureRequest) -> None:
    names: dict[str, Any] = {"__name__": "my_script"}
    printed, outputs = StringIO(), list[str]()
    for block in titled(page):
        if block.language == "python" and block.title in ("Model and data", "sweeprof"):
            with redirect_stdout(printed):
                exec(block.text, names)
        if block.title == "sweeprof prints":
            outputs.append("".join(f"{line.rstrip()}\n" for line in printed.getvalue().strip("\n").splitlines()))
            printed = StringIO()
            if not request.config.getoption("--overwrite"):
                assert masked(block.text) == masked(outputs[-1]), "pytest --overwrite accepts it"
    assert outputs
    if request.config.getoption("--overwrite"):
        written = iter(outputs)
        text = page.read_text(encoding="utf-8")
        pattern = r'^(```text title="sweeprof prints"\n).*?^```$'
        page.write_text(
            re.sub(pattern, lambda found: f"{found[1]}{next(written)}```", text, flags=re.MULTILINE | re.DOTALL),
            encoding="utf-8",
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nobody_needs_more_lines_than_with_the_original(page: Path) -> None:
    pairs = []
    for original, ours in pairwise(titled(page)):
        if original.title == page.stem and ours.title == "sweeprof":
            for code in (original.text, ours.text):
                ast.parse(code)
            pairs.append((lines_of_code(original.text), lines_of_code(ours.text)))
    assert pairs
    assert all(ours <= original for original, ours in pairs)
    text = page.read_text(encoding="utf-8")
    written = re.findall(r"^Lines of code: (\d+) with .*, (\d+) with sweeprof\.$", text, re.MULTILINE)
    assert [(int(original), int(ours)) for original, ours in written] == pairs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_and_names_that_a_page_mentions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = builtin_metrics()
    families = "|".join({name.partition("/")[0] for name in known})
    mentioned = re.findall(rf"`((?:{families})/\w+)`", text)
    assert mentioned or page.stem == "nnprofiler"
    assert set(mentioned) <= {*known, "quality/eval"}  # the default name of an evaluation
    for owner, kind in (("layers", Layers), ("profiler", sweeprof.Profiler), ("sweeprof", sweeprof)):
        for name in re.findall(rf"\b{owner}\.(\w+)", text.partition("## Where to find the rest")[2]):
            assert hasattr(kind, name), f"{owner}.{name}"
