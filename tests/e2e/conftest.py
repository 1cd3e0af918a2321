"""What tests of ``torch.compile(backend="redfuser")`` begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from redfuser import dynamo
from redfuser.dynamo import compiler


@pytest.fixture(scope="session")
def compiling() -> Iterator[None]:
    """One compile process for all modules: it is told with each graph where the store is, and takes seconds to start."""
    yield
    compiler.process().stop()


@pytest.fixture(scope="module")
def store(compiling: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store for a module; certificates are other tests' business."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDFUSER_CACHE_DIR", str(folder))
        patch.setenv("REDFUSER_VERIFY", "0")
        yield folder


@pytest.fixture
def fresh() -> Iterator[None]:
    """Graphs of ``torch.compile`` that no earlier test has left."""
    torch._dynamo.reset()
    dynamo.clear()
    yield
    torch._dynamo.reset()
