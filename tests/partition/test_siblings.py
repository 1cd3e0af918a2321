"""A row is read once: what is written and reduced again, and regions that nothing connects but what they read, are one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import redfuser
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.state import Fused, NotFusable
from redfuser.frontend import import_model
from redfuser.partition import Partition, Partitioner
from redfuser.untuned import holds, priced
from workloads.correctness import shared

X, H, W, V = torch.randn(65, 128), torch.randn(65, 128), torch.randn(128), torch.randn(128)


def deep(x: Tensor, h: Tensor, w: Tensor, v: Tensor) -> Any:
    """Two layers, of which each norm's row is residual and reduced again."""
    for _ in range(2):
        h = h + F.rms_norm(torch.tanh(x + h), (128,), w)
        x = F.rms_norm(h, (128,), v)
    return x


ONE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "post and next": (shared.post_and_next, (X, H, W, V)), "twice": (shared.twice, (X, W, V, W, V)),
    "thrice": (shared.thrice, (X,)), "entropy": (shared.entropy, (X,)), "confident": (shared.confident, (X,)),
    "weights and total": (shared.weights_and_total, (X,)), "norms": (shared.norms, (X, W, V)), "unlike": (shared.unlike, (X,)),
    "moments": (shared.moments, (X,)), "kept out": (shared.kept_out, (X, H > 0)), "apart": (shared.apart, (X, H)),
    "deep": (deep, (X, H, W, V))}


def found(f: Callable[..., Any], args: tuple[Tensor, ...], price: Callable[[Fused], float | NotFusable] | None = None,
          ) -> tuple[Partitioner, Partition]:
    search = Partitioner(import_model(f, args), holds=lambda s: holds(s, "sm_90a"), priced=price)
    return search, search.run()


@pytest.mark.parametrize("name", ONE)
def test_a_row_is_read_once(name: str) -> None:
    f, args = ONE[name]
    _, p = found(f, args, lambda s: priced(s, "sm_90a"))
    assert len(p.regions) == 1 and not p.refusals, [str(r.cascade) for r in p.regions]
    compiled = redfuser.compile(f, args, target="cpu")
    assert len(compiled.report.fused) == 1
    torch.testing.assert_close(compiled(*args), f(*args), rtol=2e-5, atol=2e-5)


def test_a_certificate_lists_no_rounding_of_what_was_given_up() -> None:
    """The norm of the written row is reduced as the program has it; the state that was tried before moves a rounding."""
    (region,) = found(shared.post_and_next, tuple(t.bfloat16() for t in (X, H, W, V)))[1].regions
    assert any("once the results that it reads are final" in c for c in region.fused.certificate.choices)
    assert not region.fused.certificate.roundings


OTHERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "another tensor": (lambda x, h: (x.softmax(-1), h.softmax(-1)), (X, H)),
    "a vector in common": (lambda x, h, w: (F.rms_norm(x, (128,), w), F.rms_norm(h, (128,), w)), (X, H, W)),
    "another row of it": (lambda x: (x.softmax(-1), x.softmax(0)), (X,)),
    "a product between": (lambda x, w: (x.softmax(-1), (x @ w).softmax(-1)), (X, torch.randn(128, 96)))}


@pytest.mark.parametrize("name", OTHERS)
def test_other_rows_stay_apart(name: str) -> None:
    f, args = OTHERS[name]
    assert len(found(f, args)[1].regions) == 2


def test_what_depends_on_the_other_by_way_of_torch_stays_apart() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.softmax(-1)
        return y, (x + torch.linalg.matrix_exp(y.T @ y).sum()).softmax(-1)

    _, p = found(f, (X,))
    assert len(p.regions) == 2


def reductions(s: Fused) -> int:
    return sum(isinstance(x, Reduce) for x in s.cascade.stmts)


def test_what_is_slower_together_stays_apart() -> None:
    f, args = ONE["unlike"]
    _, alone = found(f, args, lambda s: 1e-6 * reductions(s) ** 2)
    assert sorted(reductions(r.fused) for r in alone.regions) == [1, 2, 2]
    assert [n.code for n in alone.notes] == ["RF305"] * 2 and all("not joined with" in n.text for n in alone.notes)


@pytest.mark.parametrize(("name", "want"), [("weights and total", [2, 2]), ("post and next", [1, 1]), ("moments", [2, 2])])
def test_what_has_no_kernel_together_is_parted_whole(name: str, want: list[int]) -> None:
    """Neither side loses a reduction of its own."""
    search, p = found(*ONE[name])
    while len(p.regions) == 1:
        assert search.give_up({p.regions[0].name: NotFusable("RF410", "", "it has a kernel", "", "")})
        p = search.run()
    assert sorted(reductions(r.fused) for r in p.regions) == want
