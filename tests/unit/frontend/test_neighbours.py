"""Nearest neighbours that a map reads are views of it; others stay torch's calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from redfuser.frontend import import_model
from redfuser.frontend.neighbours import nearest
from redfuser.partition import Partitioner
from redfuser.tvm_compat import bindings, op_name
from tests.partition.helpers import execute


def wide(x: Tensor, *times: float) -> Tensor:
    return F.interpolate(x, scale_factor=times if len(times) > 1 else times[0], mode="nearest")


READ: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "a line": (lambda x: F.relu(wide(x, 2)) + 1, (2, 3, 10)),
    "a picture": (lambda x: wide(x, 2) * 2, (2, 3, 5, 6)),
    "a volume": (lambda x: wide(x, 2) * 4, (1, 2, 3, 4, 5)),
    "down alone": (lambda x: wide(x, 4, 1) - 1, (2, 3, 5, 6)),
    "by its size": (lambda x: F.interpolate(x, size=(10, 24)) + 1, (2, 3, 5, 6)),
    "joined": (lambda x: torch.cat([wide(x, 2), x.repeat(1, 1, 2, 2)], 1), (2, 3, 5, 6)),
    "in half precision": (lambda x: (wide(x.half(), 2) * 4).float(), (2, 3, 5, 6)),
}
OTHERS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "three times": (lambda x: wide(x, 3) + 1, (2, 3, 5, 6)),  # a third is rounded
    "not whole": (lambda x: wide(x, 1.5) + 1, (2, 3, 6, 6)),
    "smaller": (lambda x: wide(x, 0.5) + 1, (2, 3, 6, 6)),
    "between them": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1, (2, 3, 5, 6)),
    "read by no map": (lambda x: F.conv2d(wide(x, 2), torch.ones(4, 3, 3, 3)), (2, 3, 5, 6)),
    "a factor that is no quotient": (lambda x: torch.ops.aten.upsample_nearest2d(x, [10, 12], 1.9, 2.0) + 1, (2, 3, 5, 6)),
}


@pytest.mark.parametrize("name", READ)
def test_a_map_reads_them_in_place(name: str) -> None:
    f, shape = READ[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    imported = import_model(f, (x,))
    viewed = nearest(imported)
    assert all(op_name(b.value) != "call_dps_packed" for b in bindings(viewed.mod["main"]))
    found = Partitioner(viewed).run()
    assert execute(viewed, found, (x,))[0].equal(f(x)) and found.maps


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_as_they_are(name: str) -> None:
    f, shape = OTHERS[name]
    imported = import_model(f, (torch.randn(shape),))
    assert nearest(imported) is imported and any(op_name(b.value) == "call_dps_packed" for b in bindings(imported.mod["main"]))
