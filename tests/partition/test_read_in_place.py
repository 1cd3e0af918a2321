"""What moves values or belongs to a library's product costs no kernel and no copy of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from redfuser import outer
from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.partition.helpers import execute, partitioned

BACK = torch.tensor([2, 3, 4, 5, 6, 7, 0, 1])
X, W, BIAS, COS = torch.randn(2, 8, 8, 16), torch.randn(48, 16), torch.randn(16), torch.randn(8, 8)


def shifted_windows(x: Tensor, w: Tensor) -> Tensor:
    """Norm, roll, windows, a product and back."""
    y = F.layer_norm(x, (16,)).roll((-3, -1), (1, 2)).reshape(2, 2, 4, 2, 4, 16).transpose(2, 3).reshape(8, 16, 16)
    y = (y @ w[:16]).reshape(2, 2, 2, 4, 4, 16).transpose(2, 3).reshape(2, 8, 8, 16)
    return F.layer_norm(x + y.roll((3, 1), (1, 2)), (16,))


def known_places(x: Tensor, w: Tensor) -> Tensor:
    """Positions that are counted, around the end or backwards, however they are written."""
    y = F.layer_norm(x, (16,))[:, BACK].index_select(2, torch.arange(7, -1, -1))
    return F.layer_norm((y @ w[:16]).relu() + x, (16,))


def half_heads(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embeddings of pieces of one product: half a head is read from the other half's places."""
    def turned(y: Tensor) -> Tensor:
        y = y.unflatten(-1, (2, 8)).transpose(1, 2)
        return y * COS + torch.cat((-y[..., 4:], y[..., :4]), -1) * COS

    y = F.linear(x[:, 0], w)
    return turned(y[..., :16]), turned(y[..., 16:32])


def shared_layer(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Two products of one weight and one bias, in half precision."""
    w, bias = w[:16].half(), BIAS.half()
    return F.linear(x.half(), w, bias), F.linear(2 * x.half() + 1, w, bias), torch.softmax(x, -1)


@pytest.mark.parametrize("program, absent", [
    (shifted_windows, ("roll", "cat(", "index_select")), (known_places, ("index_select", "flip", "[:, ")),
    (half_heads, ("cat(", "linear[", ".contiguous(")), (shared_layer, ("linear_acc", "matmul", "linear.to("))])
def test_nothing_is_copied(program: Callable[..., object], absent: tuple[str, ...]) -> None:
    imported = import_model(program, (X, W))
    found = partition(imported)
    text = outer.emit(imported, found.parts, {r.name: r.name.replace(".", "_") for r in found.parts}).source
    assert not [a for a in absent if a in text], text
    want = program(X, W)
    for got, exact in zip(execute(imported, found, (X, W)), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(got, exact, rtol=0.01 if exact.dtype == torch.half else 1e-5, atol=0.01)


def test_negative_positions_are_wrapped_by_one_kernel() -> None:
    """A comparison, a sum and a choice of torch's are three kernels."""
    x, at = torch.randn(60, 24), torch.randint(-60, 60, (700,))
    imported, found = partitioned(lambda x, at: x[at] * 2, (x, at))
    assert len(found.maps) == 1 and "select(" in str(found.maps[0].cascade)
    torch.testing.assert_close(execute(imported, found, (x, at))[0], x[at] * 2)


def crossed(u: Tensor, v: Tensor) -> Tensor:
    return torch.linalg.cross(u[..., :3], v[..., 1:4]) * 2 + v[..., :3]


def rolled(u: Tensor, v: Tensor) -> Tensor:
    return (u.unflatten(2, (8, 8)).roll((3, 1), (2, 3)).flatten(2) + v).tanh()


def replicated(u: Tensor, v: Tensor) -> Tensor:
    """Channels come last, and steps are repeated at both ends."""
    return F.pad(u.transpose(1, 2), (2, 2), mode="replicate").abs() + 1


def gated_heads(u: Tensor, v: Tensor) -> Tensor:
    """Heads become a row beside a gate of the row."""
    return u.unflatten(1, (2, 6)).transpose(1, 2).reshape(5, 6, 128) * v.reshape(5, 6, 128).sigmoid()


def channels_apart(u: Tensor, v: Tensor) -> Tensor:
    return u.transpose(1, 2).reshape(-1, 12) * v.reshape(-1, 12).tanh()


@pytest.mark.parametrize("program", [crossed, rolled, replicated, gated_heads, channels_apart])
def test_inputs_are_read_where_they_lie(program: Callable[..., Tensor]) -> None:
    """torch copies what it takes at computed places, and what is permuted before axes are joined."""
    args = torch.randn(2, 5, 12, 64).unbind()
    imported, found = partitioned(program, args)
    assert len(found.maps) == 1
    text = outer.emit(imported, found.maps, {r.name: "k" for r in found.maps}).source
    assert not [a for a in ("index_select", "transpose(", "roll(", "[:, :") if a in text], text
    torch.testing.assert_close(execute(imported, found, args)[0], program(*args))


def small_heads(u: Tensor, v: Tensor) -> Tensor:
    return u.unflatten(2, (8, 8)).transpose(1, 2).reshape(5, 8, 96) * v.sigmoid()


def odd_channels(u: Tensor, v: Tensor) -> Tensor:
    return u.transpose(1, 2).reshape(-1, 12) * v.tanh()


@pytest.mark.parametrize("program, u, v", [(small_heads, (5, 12, 64), (5, 8, 96)), (odd_channels, (5, 12, 21), (105, 12))])
def test_few_elements_that_lie_together_are_laid_out_first(program: Callable[..., Tensor], u: tuple[int, ...],
                                                           v: tuple[int, ...]) -> None:
    """Eight of them with the rest of the row elsewhere, or lines that begin anywhere: a copy of torch's is a kernel more, and
    each is as fast as memory."""
    args = torch.randn(u), torch.randn(v)
    imported, found = partitioned(program, args)
    assert len(found.maps) == 1
    text = outer.emit(imported, found.maps, {r.name: "k" for r in found.maps}).source
    assert "transpose(" in text
    torch.testing.assert_close(execute(imported, found, args)[0], program(*args))
