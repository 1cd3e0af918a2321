"""A new token's key and value behind a cache: attention reads both where they lie, and means what torch computes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser import outer
from redfuser import tvm_compat as tc
from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.interpret import run
from tests.partition.helpers import execute

CACHES = torch.randn(2, 2, 2, 23, 16)
Q, K, V = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 16)


def shared(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1)


def spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def expanded(x: Tensor) -> Tensor:
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, spelled])
@pytest.mark.parametrize("share", [shared, expanded])
def test_no_cache_is_copied_for_one_more_row(attend, share) -> None:
    def step(q: Tensor, caches: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, share(torch.cat((caches[0], k), 2)), share(torch.cat((caches[1], v), 2)))

    args = (Q, CACHES, K, V)
    imported = import_model(step, args)
    p = partition(imported)
    (r,) = p.regions
    assert r.name == "attn.0" and not p.maps
    text = outer.emit(imported, p.parts, {"attn.0": "attn"}).source
    assert "cat" not in text and "caches.contiguous()" in text, text
    for got in (run(imported, args), execute(imported, p, args)):
        torch.testing.assert_close(got[0], step(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [1, 5])
def test_a_token_in_front_of_the_keys_alone_leaves_the_row_one(first) -> None:
    """A class token that no rotary embedding turns: the keys are joined again, the values never were apart."""
    def attend(q: Tensor, k: Tensor, v: Tensor, turn: Tensor) -> Tensor:
        q, k = (torch.cat((x[:, :, :first], x[:, :, first:] * turn), 2) for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v)

    args = (torch.randn(2, 4, 40, 16), torch.randn(2, 4, 40, 16), torch.randn(2, 4, 40, 16), torch.randn(40 - first, 16))
    imported = import_model(attend, args)
    p = partition(imported)
    assert [r.name for r in p.regions] == ["attn.0"]
    for got in (run(imported, args), execute(imported, p, args)):
        torch.testing.assert_close(got[0], attend(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hidden", ["nothing", "the cache", "the new row", "all", "infinity"])
def test_what_is_hidden_or_infinite_is_as_in_torch(hidden) -> None:
    def step(s: Tensor, c: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(torch.cat((s, c), -1), -1) @ torch.cat((v, b), -2)

    s, c, v, b = torch.randn(2, 3, 9) * 20, torch.randn(2, 3, 1) * 20, torch.randn(2, 9, 4), torch.randn(2, 1, 4)
    if hidden in ("the cache", "all"):
        s[:, 1] = -math.inf
    if hidden in ("the new row", "all"):
        c[:, 1] = -math.inf
    if hidden == "infinity":
        c[:, 1] = math.inf
    imported = import_model(step, (s, c, v, b))
    for got in (run(imported, (s, c, v, b)), execute(imported, partition(imported), (s, c, v, b))):
        torch.testing.assert_close(got[0], step(s, c, v, b), equal_nan=True, rtol=1e-4, atol=1e-5)


def test_two_rows_and_rounded_weights_are_summed_piece_by_piece() -> None:
    def step(q: Tensor, caches: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(q @ shared(torch.cat((caches[0], k, k * 0.5), 2)).mT, -1).to(q.dtype)
        return p @ shared(torch.cat((caches[1], v, v * 0.25), 2))

    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-2)):
        args = tuple(x.to(dtype) for x in (Q, CACHES, K, V))
        imported = import_model(step, args)
        assert "concat" not in [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])]
        torch.testing.assert_close(run(imported, args)[0], step(*args), rtol=tolerance, atol=tolerance)


def test_pieces_that_do_not_meet_are_joined() -> None:
    def step(q: Tensor, k: Tensor, a: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return spelled(q, torch.cat((k, a), 2), torch.cat((b, v), 2))

    args = (Q, CACHES[0].repeat(1, 2, 1, 1), K.repeat(1, 2, 1, 1), CACHES[1].repeat(1, 2, 1, 1), V.repeat(1, 2, 1, 1))
    imported = import_model(step, args)
    torch.testing.assert_close(run(imported, args)[0], step(*args), rtol=1e-5, atol=1e-6)


def test_a_cache_that_is_returned_is_read_as_it_is_written() -> None:
    def step(q: Tensor, past: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        return spelled(q, keys, values), torch.stack((keys, values))

    args = (Q, CACHES.repeat(1, 1, 2, 1, 1), K.repeat(1, 2, 1, 1), V.repeat(1, 2, 1, 1))
    imported = import_model(step, args)
    p = partition(imported)
    assert [len(r.inputs) for r in p.regions] == [3] and "sum" not in p.kept
    for got, want in zip(execute(imported, p, args), step(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "points", "joined"), [
    (torch.bfloat16, 2048, True), (torch.bfloat16, 64, False), (torch.float32, 2048, False)])
def test_distances_of_many_halves_stay_one_product(dtype, points, joined) -> None:
    """Of its pieces torch would make products in float32."""
    args = tuple(torch.zeros(points, 64, dtype=dtype) for _ in range(2))
    imported = import_model(lambda a, b: torch.cdist(a, b).amin(1), args)
    products = [shape for shape in _products(imported) if shape[-1] != 1]
    assert products == [(points, 66 if joined else 64)]


def _products(imported) -> list[tuple[int, ...]]:
    function = imported.mod["main"]
    return [tc.shape_of(b.value.args[0]) for block in function.body.blocks for b in block.bindings
            if tc.op_name(b.value) == "matmul"]
