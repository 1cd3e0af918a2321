"""Golden files: ``golden("name.txt", text)`` compares with tests/golden/name.txt; ``--update-golden`` accepts the change.

Updating is refused in CI (the variable CI is set there): a changed golden is reviewed like code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("golden files are not updated in CI: run `make golden` and commit the diff")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests need a GPU: without one they are reported as skipped, with that reason."""
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with its golden file (a path below tests/golden), line by line."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text.rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"no golden file {path.name}: run `make golden` and review it", pytrace=False)
        assert text == path.read_text(), f"{path.name} changed: if that is meant, run `make golden` and review the diff"

    return check
