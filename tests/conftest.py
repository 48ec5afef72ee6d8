"""Options and fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite", action="store_true", help="write the golden files anew instead of comparing with them"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of a name; writes the file when pytest runs with ``--overwrite``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--overwrite"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"tests/golden/{name} is missing: pytest --overwrite writes it"
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from tests/golden/{name}: pytest --overwrite accepts it"
        )

    return check
