"""What somebody meets who looks around: the text of public objects, and wrong values where a name or a file is asked for."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import redfuser
from redfuser.child import Child


def attention(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def test_objects_say_what_they_are() -> None:
    kernel = redfuser.kernel(attention)
    assert repr(kernel) == "Kernel(attention, to be bound: .bind(*args))"
    assert repr(kernel.bind(torch.randn(4, 8), target="cpu")) == "Bound(attention, cpu, 1 of 1 cascades fused)"


@pytest.mark.parametrize("arch", [3, b"cpu", ["cpu"]])
def test_an_architecture_is_a_name(arch: Any, tmp_path: Path) -> None:
    with pytest.raises(redfuser.RedFuserError, match="RF191 arch cannot be"):
        redfuser.load(tmp_path / "model.rf", arch=arch)


def test_a_child_that_is_forgotten_leaves_no_file_open() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        child = Child("json.tool")
        child.start({})
        child.stop()
        del child
        gc.collect()
    assert not [w for w in told if issubclass(w.category, ResourceWarning)]
