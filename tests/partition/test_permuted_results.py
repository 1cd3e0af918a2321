"""Results that lie across what they are made of: a map writes them as they are returned, and reads through shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from redfuser.frontend import import_model
from redfuser.partition import Partition, Partitioner
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from tests.partition.helpers import execute, source

H200 = target("sm_90a")


def found(f: Callable[..., Any], *args: Tensor) -> tuple[Partition, str]:
    """The partition and the outer graph's text, whose kernels compute what torch does."""
    imported = import_model(f, args)
    p = Partitioner(imported).run()
    want = f(*args)
    for got, w in zip(execute(imported, p, args), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(got, w)
    return p, source(imported, p)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


WRITTEN: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a map, then the other way round": (lambda x: (x * 2 + 1).T.contiguous(), (x(40, 24),)),
    "one operation of what lies across": (lambda x: (x.T * 2).contiguous(), (x(40, 24),)),
    "one operation, channels last": (lambda x: F.relu(x).permute(0, 2, 3, 1).contiguous(), (x(2, 24, 6, 8),)),
    "channels first": (lambda x, b: (x / 255 - b).permute(0, 3, 1, 2).contiguous(), (x(2, 6, 8, 3), x(3))),
    "heads": (lambda x: (x * 0.5).permute(0, 2, 1, 3).contiguous(), (x(2, 10, 4, 8),)),
    "keys": (lambda x: (x * 0.5).permute(0, 2, 3, 1).contiguous(), (x(2, 10, 4, 8),)),
    "nothing but a copy": (lambda x: x.T.contiguous(), (x(40, 24),)),
    "patches": (lambda x: x.view(2, 3, 4, 8, 4, 8).permute(0, 2, 4, 1, 3, 5).reshape(2, 16, 192), (x(2, 3, 32, 32),)),
    "turned round": (lambda x: (x * 2 + 1).flip(-1), (x(40, 24),)),
    "rolled, and the other way round": (lambda x: (x * 2 + 1).roll(3, 0).T.contiguous(), (x(40, 24),)),
    "a sum with what lies across": (lambda x, y: y + x.T, (x(40, 24), x(24, 40))),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_map_writes_them_as_they_are_returned(what: str) -> None:
    f, args = WRITTEN[what]
    p, text = found(f, *args)
    assert len(p.parts) == 1, text
    assert not re.search(r"permute\(|transpose\(|\)\.contiguous|\.flip\(|\.roll\(", text), text


@pytest.mark.parametrize(("f", "args"), [
    (lambda x: x.T, (x(40, 24),)), (lambda x: x.T * 2, (x(40, 24),)),
    (lambda x, y: x.T + y, (x(40, 24), x(24, 40))), (lambda x: x[:, :20].contiguous(), (x(40, 24),)),
    (lambda x, y: x + y[:, :20], (x(40, 20), x(40, 24))), (lambda x: x.view(2, 20, 256).transpose(0, 1).contiguous(), (x(40, 256),))],
    ids=["a view", "as its operand lies", "as its first operand lies", "a part", "a sum with a part", "long lines"])
def test_what_torch_does_as_well_is_torchs(f: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    p, _ = found(f, *args)
    assert not p.parts


def test_a_result_that_is_read_too_is_written_once() -> None:
    """As it is returned."""
    p, text = found(lambda x, w: ((y := (x.exp() + 1).T.contiguous()), y @ w), x(40, 24), x(40, 8))
    assert len(p.parts) == 1 and ").contiguous()" not in text, text


@pytest.mark.parametrize(("shape", "rows", "elements"), [((96, 160), 32, 32), ((3000, 3), 4, 256), ((3, 3000), 256, 4)])
def test_tiles_are_square_or_have_all_of_few(shape: tuple[int, int], rows: int, elements: int) -> None:
    (region,) = Partitioner(import_model(lambda x: (x * 2 + 1).T.contiguous(), (x(*shape),))).run().parts
    program = realise(region.fused, "map")
    config = configs(program, H200)[0]
    assert (config.rows, config.segment) == (rows, elements)
    assert "turned" in str(tensorize(program, config, H200))


def test_boxes_are_one_kernel() -> None:
    """Four sides, of which each takes exponentials that it shares with another: a block has whole boxes."""
    def boxes(a: Tensor, d: Tensor) -> Tensor:
        w, h = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1]
        px, py = d[..., 0] * w + a[..., 0] + 0.5 * w, d[..., 1] * h + a[..., 1] + 0.5 * h
        pw, ph = d[..., 2].exp() * w, d[..., 3].exp() * h
        return torch.stack([px - pw / 2, py - ph / 2, px + pw / 2, py + ph / 2], -1)

    p, _ = found(boxes, x(5, 70, 4), x(5, 70, 4) * 0.5)
    assert len(p.parts) == 1


def test_what_torch_must_copy_is_an_operation() -> None:
    """It has no view of what is turned round, rolled or repeated: a map of it is one kernel for two."""
    for f in (lambda x: x.flip(0, 2) + 1, lambda x: x.roll(3, 1) * 2, lambda x: x.repeat_interleave(2, 1) - 1):
        p, text = found(f, x(4, 6, 8))
        assert len(p.maps) == 1 and not re.search("flip|roll|repeat", text)
    for f in (lambda x: x.transpose(0, 1) + 1, lambda x: x[:, 1:] * 2, lambda x: x.view(24, 8) - 1, lambda x: x.flip(1)):
        assert not found(f, x(4, 6, 8))[0].maps, "one operation, and a view of torch's"


def test_windows_of_a_sequence_are_written_out() -> None:
    """A short convolution of each channel, in one kernel that reads the sequence where its windows lie."""
    p, text = found(lambda x, w: (F.pad(x.mT, (3, 0)).unfold(-1, 4, 1) * w).sum(-1).relu(), x(2, 4100, 64), x(64, 1, 4))
    assert len(p.maps) == 1 and not p.regions and "pad" not in text, text


@pytest.mark.parametrize(("shape", "maps"), [((1, 64, 64, 64), 0), ((1, 16, 8, 8), 1), ((1, 16, 16, 300), 1)])
def test_a_shuffle_that_leaves_no_tile_is_torchs(shape: tuple[int, ...], maps: int) -> None:
    """Of rows of two elements each 64 beside one another a block would be idle for the most part; a small tensor is one launch."""
    b, c, h, w = shape
    p, _ = found(lambda x: (x * 0.5).view(b, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // 4, 2 * h, 2 * w), x(*shape))
    assert len(p.maps) == maps
