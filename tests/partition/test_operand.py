"""Attention that scales its queries before the product: its kernel makes them of what it reads anyway, or a map does, as the
model of resources has it; torch makes and copies them in no case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from redfuser import outer
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.expr import Cast, Load, walk
from redfuser.acrf.state import Fused, NotFusable
from redfuser.frontend import import_model
from redfuser.partition import Partition, Partitioner
from redfuser.untuned import priced
from tests.partition.helpers import execute

HALF = torch.float16
Price = Callable[[Fused], float | NotFusable]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(HALF)


def found(f: Callable[..., Tensor | tuple[Tensor, ...]], *args: Tensor, price: Price | None = None, run: bool = True
          ) -> tuple[Partition, str]:
    """The partition and the outer graph's text, whose kernels compute what torch does."""
    imported = import_model(f, args)
    p = Partitioner(imported, priced=price).run()
    want = f(*args)
    for got, w in zip(execute(imported, p, args) if run else (), want if isinstance(want, tuple) else (want,)):
        torch.testing.assert_close(got, w, rtol=4e-3, atol=4e-3)
    return p, outer.emit(imported, p.parts, {r.name: f"k{i}_{r.fused.cascade.name}" for i, r in enumerate(p.parts)}).source


def packed(heads: int, of: int) -> Callable[[Tensor], Tensor]:
    """Attention of q, k and v that lie in one tensor [batch, tokens, 3, heads, of]."""
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.view(*x.shape[:2], 3, heads, of).permute(2, 0, 3, 1, 4)
        return ((q * of ** -0.5) @ k.mT).softmax(-1) @ v

    return attend


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = x.view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
    q = q * 0.3
    return (q @ k.mT).softmax(-1) @ v, q


def of_its_own(q: Tensor, x: Tensor) -> Tensor:
    k, v = x.view(*x.shape[:2], 2, 2, 16).permute(2, 0, 3, 1, 4)
    return ((q * 0.3) @ k.mT).softmax(-1) @ v


def test_queries_are_scaled_as_they_are_loaded() -> None:
    p, text = found(packed(2, 24), drawn(3, 20, 144))
    (r,) = p.regions
    assert not p.maps and list(r.inputs.values()) == ["x"] and "*" not in text
    scores = next(s for s in r.cascade.stmts if isinstance(s, Reduce))
    assert any(isinstance(e, Cast) and e.dtype == "f16" for e in walk(scores.expr)), "as the program rounds them"
    assert all(e.tensor == r.cascade.inputs[0].name for e in walk(scores.expr) if isinstance(e, Load))


@pytest.mark.parametrize("f,args", [(both, (drawn(3, 20, 96),)), (of_its_own, (drawn(3, 2, 20, 16), drawn(3, 20, 64)))],
                         ids=["written anyway", "one tensor more"])
def test_what_saves_no_tensor_stays_a_map(f: Callable[..., Tensor], args: tuple[Tensor, ...]) -> None:
    p, _ = found(f, *args)
    (r,) = p.regions
    assert any(v.startswith("mul") for v in r.inputs.values())


def test_where_it_costs_more_a_map_makes_them() -> None:
    """One kernel of ours, which writes them as the other reads them: torch's would be a product and a copy."""
    def price(s: Fused) -> float | NotFusable:
        return 30e-6 if len(s.cascade.inputs) == 1 else 20e-6

    p, text = found(packed(2, 24), drawn(3, 20, 144), price=price)
    assert [len(r.inputs) for r in p.regions] == [2] and len(p.maps) == 1
    assert "*" not in text and "mul.contiguous()" not in text
    free, _ = found(packed(2, 24), drawn(3, 20, 144), price=lambda s: 20e-6)
    assert [len(r.inputs) for r in free.regions] == [1] and not free.maps


def test_the_model_weighs_it() -> None:
    """Windows of 49 tokens take what they need as they go; of 3136 the kernel's copies are not to wait for a map."""
    def of(shape: tuple[int, ...], heads: int, size: int) -> list[int]:
        p, _ = found(packed(heads, size), torch.zeros(shape, dtype=HALF), price=lambda s: priced(s, "sm_90a"), run=False)
        return [len(r.inputs) for r in p.regions]

    assert of((2048, 49, 576), 6, 32) == [1] and of((8, 512, 2304), 12, 64) == [2]


@pytest.mark.parametrize("tokens", [20, 40])
def test_one_head_before_its_projection_is_attention(tokens: int) -> None:
    """Its weights, and the scores that they are made of, are more than what they weigh: they stay on chip."""
    w = drawn(32, 32)

    def f(x: Tensor) -> Tensor:
        return packed(1, 32)(x).transpose(1, 2).reshape(x.shape[0], -1, 32) @ w

    p, _ = found(f, drawn(3, tokens, 96))
    assert [sum(isinstance(s, Reduce) for s in r.cascade.stmts) for r in p.regions] == [4]

