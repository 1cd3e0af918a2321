"""What tests of ``torch.compile(backend="redfuser")`` begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from redfuser import dynamo
from redfuser.dynamo import compiler


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store and one compile process for a module; certificates are other tests' business."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDFUSER_CACHE_DIR", str(folder))
        patch.setenv("REDFUSER_VERIFY", "0")
        yield folder
    compiler.process().stop()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Graphs of ``torch.compile`` that no earlier test has left."""
    torch._dynamo.reset()
    dynamo.clear()
    yield
    torch._dynamo.reset()
