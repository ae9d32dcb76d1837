"""What all tests share: golden files, compared exactly and written anew with ``--update-golden``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files from what the tests get now, instead of comparing",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a golden file, named by its path under tests/golden; a missing one fails."""
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            return
        if not file.exists():
            pytest.fail(f"no golden file {name}; pytest --update-golden writes it")
        assert text == file.read_text(encoding="utf-8")

    return check
