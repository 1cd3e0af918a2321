"""Pools are maps of their windows: beside others they are in their kernel, by themselves torch's call; borders, NaN and
infinities are torch's; a walk of a row does not read a window that slides along it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redfuser.frontend import channels_last, import_model
from redfuser.partition import Partition, partition
from tests.partition.helpers import execute, flat, source

HALF = torch.float16
Pool = Callable[[Tensor], Tensor]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, odd: bool = True) -> Tensor:
    """Numbers; odd: with NaN and both infinities among them, one of each in a corner."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    if odd:
        flat = x.view(-1)
        flat[0], flat[-1], flat[len(flat) // 2] = math.nan, math.inf, -math.inf
    return x


def found(f: Callable[..., Tensor], *args: Tensor) -> Partition:
    """The partition, whose kernels compute what torch does."""
    imported = import_model(f, args)
    p = partition(imported)
    with torch.no_grad():
        want = flat(f(*args))
        exact = flat(f(*(a.double() if a.is_floating_point() else a for a in args)))
    for got, w, e in zip(execute(imported, p, args), want, exact, strict=True):
        assert got.dtype == w.dtype and torch.equal(got.isnan(), w.isnan())
        assert torch.equal(got.isposinf(), w.isposinf()) and torch.equal(got.isneginf(), w.isneginf())
        fine = w.isfinite() & e.isfinite()
        unit = torch.finfo(w.dtype).eps
        assert (got - e)[fine].abs().max() <= 2 * (w - e)[fine].abs().max() + unit * e[fine].abs().max()
    return p


POOLS: dict[str, tuple[Pool, tuple[int, ...]]] = {
    "average": (lambda x: F.avg_pool2d(x, 3, 1, 1), (2, 3, 7, 6)),
    "average without padding": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (2, 3, 7, 6)),
    "average by turns": (lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0)), (2, 3, 7, 6)),
    "average beyond the end": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 8, 8)),
    "the same without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (2, 3, 8, 8)),
    "average, no padding beyond": (lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True), (2, 3, 7, 5)),
    "average of a line": (lambda x: F.avg_pool1d(x, 4, 3, 2), (3, 5, 17)),
    "average of one image": (lambda x: F.avg_pool2d(x, 3, 1, 1), (3, 7, 6)),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (2, 3, 8, 9)),
    "adaptive average of large windows": (lambda x: F.adaptive_avg_pool2d(x, (2, 1)), (2, 3, 32, 40)),
    "adaptive average of a line": (lambda x: F.adaptive_avg_pool1d(x, 5), (3, 5, 20)),
    "adaptive average of a space": (lambda x: F.adaptive_avg_pool3d(x, (1, 2, 2)), (1, 2, 3, 4, 4)),
    "average of large windows": (lambda x: F.avg_pool2d(x, (16, 20)), (2, 3, 32, 40)),
    "average of large windows, the rest cut off": (lambda x: F.avg_pool2d(x, 16), (2, 3, 33, 40)),
    "average of all": (lambda x: F.avg_pool2d(x, (7, 6), 1), (2, 3, 7, 6)),
    "average of all but the last": (lambda x: F.avg_pool2d(x, 6, 3), (2, 3, 8, 6)),
    "average of a long line": (lambda x: F.avg_pool1d(x, 256), (3, 5, 512)),
    "largest of large windows": (lambda x: F.max_pool2d(x, 16), (2, 3, 16, 35)),
    "largest of all": (lambda x: F.max_pool2d(x, (8, 7)), (2, 3, 8, 7)),
    "average of a space": (lambda x: F.avg_pool3d(x, (1, 2, 3), 1, (0, 1, 1), count_include_pad=False), (1, 2, 3, 4, 5)),
    "largest": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 8, 7)),
    "largest, apart": (lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), (2, 3, 8, 7)),
    "largest beyond the end": (lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True), (2, 3, 8, 7)),
    "largest of a line": (lambda x: F.max_pool1d(x, 3, 2, 1, 2), (3, 5, 17)),
    "largest of a space": (lambda x: F.max_pool3d(x, 2, 1, 1), (1, 2, 3, 4, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF, torch.float64])
@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_a_map_beside_others(name: str, dtype: torch.dtype) -> None:
    if dtype is HALF and name.endswith("average of a space"):
        pytest.skip("torch has none on a CPU, or none but the adaptive")
    pool, shape = POOLS[name]
    p = found(lambda x: pool(x) * 2 + 1, drawn(*shape, dtype=dtype))
    assert len(p.maps) == 1 and not p.opaque and not p.unmapped, (p.opaque, p.unmapped)


CONVOLUTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "causal": (lambda x, w: F.conv1d(x, w, padding=2, groups=5)[..., :17] * x, (2, 5, 17), (5, 1, 3)),
    "by two": (lambda x, w: F.conv1d(x, w, stride=2, groups=5).exp(), (2, 5, 17), (5, 1, 4)),
    "dilated": (lambda x, w: F.conv1d(x * 2, w, x[0, :, 0], padding=4, dilation=4, groups=5).relu(), (2, 5, 17), (5, 1, 3)),
    "down an image": (lambda x, w: F.conv2d(x, w, padding=(4, 0), groups=5).relu() + 1, (2, 5, 9, 3), (5, 1, 9, 1)),
    "across an image": (lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(0, 1), groups=5) * 2 - 1, (2, 5, 9, 7), (5, 1, 1, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF, torch.bfloat16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_of_each_channel_along_a_line_is_a_map_beside_others(name: str, dtype: torch.dtype) -> None:
    f, *shapes = CONVOLUTIONS[name]
    p = found(f, *(drawn(*s, dtype=dtype, odd=False) for s in shapes))
    assert len(p.maps) == 1 and not p.opaque and not p.unmapped, (p.opaque, p.unmapped)


@pytest.mark.parametrize(("f", "shapes"), [
    (lambda x, w: F.conv1d(x, w, groups=5) * 2, ((2, 5, 17), (5, 1, 10))),
    (lambda x, w: F.conv1d(x, w, groups=5) * 2, ((2, 5, 17), (10, 1, 3))),
    (lambda x, w: F.conv1d(x, w) * 2, ((2, 5, 17), (5, 5, 3))),
    (lambda x, w: F.conv1d(x, w, groups=2) * 2, ((2, 4, 17), (4, 2, 3))),
    (lambda x, w: F.conv2d(x, w, groups=5) * 2, ((2, 5, 9, 9), (5, 1, 3, 3))),
    (lambda x, w: F.conv1d(x, w, groups=5), ((2, 5, 17), (5, 1, 3)))],
    ids=["long", "several of a channel", "of all", "of groups", "of a plane", "by itself"])
def test_other_convolutions_are_a_librarys(f: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]) -> None:
    args = tuple(drawn(*s, odd=False) for s in shapes)
    imported = import_model(f, args)
    p = partition(imported)
    text = source(imported, p)
    assert "F.conv" in text, text


def test_where_maps_are_torchs_it_is_a_librarys() -> None:
    """On a CPU; no norm behind it takes it in."""
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(F.conv1d(x, w, padding=1, groups=5).mT * 2, (5,))

    shapes = (2, 5, 17), (5, 1, 3)
    imported = import_model(f, tuple(drawn(*s, odd=False) for s in shapes))
    assert not any("select" in str(r.cascade) for r in partition(imported, maps=False).parts)


def test_what_is_counted_is_what_torch_counts() -> None:
    """A planted divisor, the window's nine everywhere, is wrong at the border alone: it is found."""
    x = drawn(2, 3, 7, 6, odd=False)
    whole, inside = (import_model(lambda x, w=w: F.avg_pool2d(x, 3, 1, 1, count_include_pad=w) * 2, (x,)) for w in (True, False))
    (a,), (b,) = (execute(i, partition(i), (x,)) for i in (whole, inside))
    assert torch.equal(a[..., 1:-1, 1:-1], b[..., 1:-1, 1:-1]) and not torch.isclose(a, b)[..., 0, :].any()


class Mixer(nn.Module):
    """PoolFormer's: a norm over an image, its pool less itself, scaled, beside a residual; and the norm behind."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.before, self.after = nn.GroupNorm(1, c), nn.GroupNorm(1, c)
        self.scale = nn.Parameter(torch.full((c,), 0.3))
        self.into, self.out = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        n = self.before(x)
        x = x + self.scale[:, None, None] * (F.avg_pool2d(n, 3, 1, 1, count_include_pad=False) - n)
        return x + self.out(self.after(x))


def test_pools_lie_between_norms_with_channels_last() -> None:
    """One kernel for the pool, the difference, the scale and the residual; what it reads is the norm's result and not its
    operand; the statistics behind read its result; nothing is turned between."""
    torch.manual_seed(0)
    model, x = Mixer().to(HALF).eval(), drawn(2, 8, 6, 4, dtype=HALF, odd=False)
    imported = channels_last(import_model(model, (x,)))
    p = partition(imported)
    text = source(imported, p)
    assert "pool" not in text and not p.unmapped
    assert text.count("contiguous.default(") == 2  # the model's operand and its result
    (mixing,) = [r for r in p.parts if "select(" in str(r.cascade)]
    assert mixing in p.maps and [t.shape for t in mixing.cascade.inputs] == [(2, 6, 4, 8), (8,), (2, 6, 4, 8)]
    assert "rsqrt" not in str(mixing.cascade) and str(mixing.cascade).count("[b, h, i, l]") > 1
    with torch.no_grad():
        eager, exact = model(x), model.double()(x.double())
    got = execute(imported, p, (x,))[0]
    assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3 * exact.abs().max()


def test_by_itself_a_pool_is_torchs() -> None:
    x = drawn(2, 3, 8, 8)
    imported = import_model(lambda x: (F.avg_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2)), (x,))
    p = partition(imported)
    text = source(imported, p)
    assert not p.parts and "aten.avg_pool2d.default(x, [3, 3], [2, 2], [1, 1], False, True)" in text
    assert "aten.max_pool2d_with_indices.default(x, [2, 2], [2, 2], [0, 0], [1, 1], False)[0]" in text


@pytest.mark.parametrize("pool", [
    lambda x: F.avg_pool2d(x, 7, 1, 3) * 2, lambda x: F.avg_pool2d(x, 3, divisor_override=2) * 2,
    lambda x: F.max_pool2d(x, 2, return_indices=True)[1].to(x.dtype) * 2, lambda x: F.adaptive_avg_pool2d(x, 3) * 2])
def test_what_is_no_map_stays_torchs_call(pool: Pool) -> None:
    x = drawn(2, 3, 8, 8, odd=False)
    assert import_model(pool, (x,)).opaque
    found(pool, x)


def test_few_operations_are_computed_again_for_a_window_and_many_are_not() -> None:
    """A sum and its ReLU, nine times each, but no GELU; a chain of maps is taken whole or not at all."""
    x, y = drawn(4, 16, 32, 32, odd=False), drawn(4, 16, 32, 32, odd=False)
    (one,) = found(lambda x, y: F.avg_pool2d(F.relu(x + y), 3, 1, 1), x, y).maps
    assert len(one.cascade.inputs) == 2
    (pooled,) = [r for r in found(lambda x, y: F.avg_pool2d(F.gelu(x) * y, 3, 1, 1) + 1, x, y).maps if "select" in str(r.cascade)]
    assert "erf" not in str(pooled.cascade) and len(pooled.cascade.inputs) == 1
    several = found(lambda x, y: F.avg_pool2d(((x + y) * y - x) * x + y, 3, 1, 1) * 2, x, y).maps
    assert sorted(len(r.cascade.inputs) for r in several) == [1, 2]


def test_a_row_is_not_walked_with_windows_along_it() -> None:
    """Columns of pixels read the pool's result; rows of channels, beside which windows slide, read the pool's operand."""
    x = drawn(2, 6, 4, 64, odd=False)

    def pooled(x: Tensor) -> Tensor:
        return x + F.avg_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1).permute(0, 2, 3, 1)

    along = found(lambda x: pooled(x).flatten(1, 2).var(1, correction=0), x)
    assert len(along.parts) == 2 and all("l //" not in str(r.cascade) for r in along.parts)
    beside = found(lambda x: F.layer_norm(pooled(x), (64,)), x)
    assert len(beside.parts) == 1 and "select" in str(beside.parts[0].cascade)
