"""Golden files: ``golden("name.txt", text)`` compares with tests/golden/name.txt; ``--update-golden`` accepts the change.
Updating is refused in CI (the variable CI is set there): a changed golden is reviewed like code.

Random numbers: every test module and every test starts from one seed, so that what is drawn depends neither on what ran before
nor on who runs beside it."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["OPENBLAS_CORETYPE"] = "Nehalem"  # numpy's products round alike on every x86 machine, if it is said before numpy is read

import numpy as np
import pytest

os.environ.setdefault("REDFUSER_TUNING", "never")  # what somebody measured, or we ship, decides no test
gc.set_threshold(50_000, 20, 20)  # what compilers make lives on; looking through all of it took 3 to 15 % of the suite

GOLDEN = Path(__file__).parent / "golden"
SEED = 20240229


def seed() -> None:
    """As ``torch.manual_seed`` does, which looks through its callers for every device that is not there: 1 ms, twice a test."""
    random.seed(SEED)
    np.random.seed(SEED)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(SEED)
        if torch.cuda.is_initialized():  # before, it has the seed of the import
            torch.cuda.manual_seed_all(SEED)


REMEMBERED = {"redfuser.tensorize.tiles": "_remembered", "redfuser.tensorize.model.roofline": "time_of",
              "redfuser.tensorize.model.shared": "dynamic_bytes", "redfuser.tensorize.model.layout": "layouts"}


class _Forgetting(pytest.MonkeyPatch):
    """What is patched may lie behind what lowering remembers, and what was made with a patch does not outlive it."""

    def setattr(self, *args: Any, **kwargs: Any) -> None:
        super().setattr(*args, **kwargs)
        _forget()

    def undo(self) -> None:
        super().undo()
        _forget()


def _forget() -> None:
    for module, name in REMEMBERED.items():
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    with _Forgetting.context() as patch:
        yield patch


class _SeededTorch:
    """torch's first seed is another one in every process: it is seeded as it is imported, by whom and when ever that is."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch" or cls not in sys.meta_path:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                module.manual_seed(SEED)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _SeededTorch)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # about to be imported: what it draws for its parameters
        seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed()  # what fixtures draw


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    seed()


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


@pytest.fixture
def nowhere() -> Iterator[None]:
    """The default device is one that holds no data, so that whatever lands there is found out."""
    import torch

    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)
