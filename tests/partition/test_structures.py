"""Equal layers cost one evaluation, also where each reads its own slice of one tensor."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from redfuser import outer
from redfuser.frontend import Imported, import_model
from redfuser.partition import Partitioner, partition
from redfuser.partition.work import WHOLE


def step(layers: int) -> Imported:
    """A step against caches that lie in one tensor."""
    def steps(q, caches, k, v):
        for i in range(layers):
            q = q + F.scaled_dot_product_attention(q, torch.cat((caches[i, 0], k), 2), torch.cat((caches[i, 1], v), 2))
        return q

    row = torch.zeros(2, 2, 1, 16)
    return import_model(steps, (row, torch.zeros(layers, 2, 2, 2, 33, 16), row.clone(), row.clone()))


def spent(layers: int) -> tuple[int, int]:
    """Nodes visited, and cascades found."""
    search = Partitioner(step(layers))
    found = search.run()
    return WHOLE - search.work.left, len(found.regions)


def test_layers_that_read_slices_of_one_tensor_are_judged_once() -> None:
    (two, regions), (five, more) = spent(2), spent(5)
    assert (regions, more) == (2, 5)
    assert five - two < two / 2, (two, five)


def test_slices_of_an_input_are_not_copied() -> None:
    imported = step(5)
    p = partition(imported)
    assert len({r.key for r in p.regions}) <= 2, "kernels that read slices"
    text = outer.emit(imported, p.parts, {r.name: r.name.replace(".", "_") for r in p.parts}).source
    assert "clone" not in text and text.count("caches.contiguous()") == 1 and "[1:].contiguous" not in text, text
