"""Reductions without a decomposition: refused by the algebra, one kernel where a row is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import redfuser
from redfuser import pipeline
from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.cascade import Reduce
from redfuser.acrf.check.verify import check
from redfuser.acrf.state import Fused, NotFusable
from redfuser.untuned import holds
from workloads.correctness.held import OF_A_ROW

DEVIATION = """
cascade deviation(x: f32[4, 64]) over l
  s = sum[l] x[i, l]
  d = sum[l] abs(x[i, l] - s / 64.0)
  return d
"""
PRODUCT = """
cascade scores(q: f32[4, 16], k: f32[64, 16]) over l
  p = sum[e] q[i, e] * k[l, e]
  m = sum[l] p
  d = sum[l] abs(p - m / 64.0)
  return d
"""


def test_no_state_merges_it_and_a_held_row_needs_none() -> None:
    """The refusal stands for who merges parts; the reduction follows the state of those before it, and its certificate is
    checked as any other."""
    refused = fuse(parse_cascade(DEVIATION))
    assert isinstance(refused, NotFusable) and refused.code == "RF201"
    fused = fuse(parse_cascade(DEVIATION), row="held")
    assert isinstance(fused, Fused) and [a.name for a in fused.state.accumulators] == ["s"]
    again = [s for s in fused.post if isinstance(s, Reduce)]
    assert len(again) == 1 and again[0].over == "l" and any("RF201" in c for c in fused.certificate.choices)
    assert not check(fused)


def test_a_product_is_not_made_twice_for_it() -> None:
    assert isinstance(fuse(parse_cascade(PRODUCT), row="held"), NotFusable)


@pytest.mark.parametrize("of", OF_A_ROW.values(), ids=OF_A_ROW)
def test_one_kernel_and_torchs_values(of: Callable[[torch.Tensor], Any]) -> None:
    """On the CPU, of rows with ties, infinities and NaN too. Without what a NaN is as an integer, which is anything."""
    def floats(x: torch.Tensor) -> torch.Tensor:
        y = of(x)
        return y[0] if isinstance(y, tuple) else y

    x = torch.randn(9, 96, generator=torch.Generator().manual_seed(0))
    x[1], x[2, 5], x[3, 7], x[4, 3] = 2.5, float("nan"), float("inf"), float("-inf")
    compiled = redfuser.compile(floats, (x,), target="cpu")
    assert len(compiled.report.fused) == 1 and not compiled.report.refused and not compiled.report.opaque
    torch.testing.assert_close(compiled(x), floats(x), rtol=2e-5, atol=2e-6, equal_nan=True)


def test_a_gpu_holds_what_fits_and_refuses_as_before_what_does_not() -> None:
    def of(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)).abs().mean(-1)

    short = redfuser.explain(of, (torch.randn(512, 1024),), target="sm_90a")
    assert [c.strategy for c in short.fused] == ["resident"] and not short.refused
    long = redfuser.explain(of, (torch.randn(8, 131072),), target="sm_90a")
    assert [c.reason.code for c in long.refused if c.reason] == ["RF201"]
    fused = fuse(parse_cascade(DEVIATION), row="held")
    assert isinstance(fused, Fused) and holds(fused, "cpu") and holds(fused, "sm_90a")


def test_a_place_of_what_is_normalised_needs_no_deviation() -> None:
    """What argmax ranks is only scaled by it: of a row that is held it is not reduced, and one kernel is left."""
    for of in (lambda x: F.layer_norm(x, (x.shape[-1],)).argmax(-1),
               lambda x: (x * (x.std(dim=-1, keepdim=True) + 1)).argmin(-1)):
        report = redfuser.explain(of, (torch.randn(5, 1025),), target="sm_90a")
        assert [c.strategy for c in report.fused] == ["resident"] and not report.refused


def concentration(x: torch.Tensor) -> torch.Tensor:
    p = x / x.sum(-1, keepdim=True)
    return (p * p).sum(-1)


def states_of(rows: int, columns: int, arch: str) -> list[list[str]]:
    from redfuser.frontend import import_model
    from redfuser.partition.search import Partitioner
    from redfuser.untuned import priced

    search = Partitioner(import_model(concentration, (torch.randn(rows, columns).half(),)), arch=arch, holds=lambda f: holds(f, arch),
                         priced=lambda f: priced(f, arch))
    return [[a.reducer.kind for a in p.fused.state.accumulators] for p in search.run().parts]


def test_a_held_row_needs_no_extremum_that_the_program_has_not() -> None:
    """Squares of shares are kept about the largest element where parts merge; of a row that a block holds they are squared as
    the program says, one reduction less. A row in parts, and a CPU, which would read it twice, keep the extremum."""
    assert states_of(512, 4096, "sm_90a") == [["sum"]]
    assert states_of(2, 131072, "sm_90a") == [["sum", "max", "sum"]]
    assert states_of(512, 4096, "cpu") == [["sum", "max", "sum"]]
    direct = fuse(parse_cascade("""
cascade shares(x: f16[4, 64]) over l
  s = sum[l] f32(x[i, l])
  t = sum[l] f32(x[i, l] / f16(s)) * f32(x[i, l] / f16(s))
  return t
"""), row="direct")
    assert isinstance(direct, Fused) and not check(direct) and any("RF214" in c for c in direct.certificate.choices)


MOMENTS = """
cascade moments(w: f32[9, 257], x: f32[9, 257]) over l
  t[i] = sum[l] w[i, l]
  m[i] = sum[l] w[i, l] / t * x[i, l]
  v[i] = sum[l] w[i, l] / t * (x[i, l] - m) * (x[i, l] - m)
  return m, v
"""


def moments(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w = w / w.sum(-1, keepdim=True)
    m = (w * x).sum(-1, keepdim=True)
    return (w * (x - m) ** 2).sum(-1)


def renyi(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p, q = p.softmax(-1), q.softmax(-1)
    return torch.log((p * p / q).sum(-1))


def masked_norm(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    m = keep[..., None].float()
    n = (m.sum((1, 2), keepdim=True) * x.shape[-1]).clamp(min=1.0)
    mean = (x * m).sum((1, 2), keepdim=True) / n
    return (x - mean) * torch.rsqrt((((x - mean) * m) ** 2).sum((1, 2), keepdim=True) / n + 1e-5)


def columns(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A weighted variance of each of three columns."""
    w = w / w.sum(-1, keepdim=True)
    return (w[..., None] * (x - (w[..., None] * x).sum(1, keepdim=True)) ** 2).sum(1)


def squared_weights(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bn,bnd->bd", w.square() / (w.square().sum(-1, keepdim=True) + 1e-9), x)


ROWS = (torch.rand(9, 257) + 0.1, torch.randn(9, 257))
FINAL = {"moments": (moments, ROWS), "divergence": (renyi, ROWS),
         "moments of columns": (columns, (torch.rand(3, 65), torch.randn(3, 65, 3))),
         "a product of squared weights": (squared_weights, (torch.rand(3, 65), torch.randn(3, 65, 3))),
         "masked norm": (masked_norm, (torch.randn(3, 17, 33), torch.rand(3, 17) < 0.6))}


@pytest.mark.parametrize(("dtype", "n", "kept"), [(torch.float32, 768, True), (torch.float16, 768, False),
                                                 (torch.float16, 8200, True), (torch.bfloat16, 8200, False)])
def test_a_mean_keeps_its_digits_where_its_sum_does_not(dtype: torch.dtype, n: int, kept: bool) -> None:
    """A layer norm of equal elements is 0 on a row that is held as well: reduced as the program does it is so of halves alone,
    whose sums are exact."""
    done = pipeline.run(lambda x: torch.nn.functional.layer_norm(x, (n,)), (torch.randn(64, n).to(dtype),), None, arch="sm_90a",
                        build=False, verify="0")
    (region,) = done.partition.regions
    assert any("about the mean of" in c for c in region.fused.certificate.choices) == kept


def test_a_state_that_is_wrong_gives_way_to_the_row() -> None:
    """Weights of 1e20 times squares of 1e10: what is deferred leaves the range, what the program reads does not."""
    merged, row = fuse(parse_cascade(MOMENTS)), fuse(parse_cascade(MOMENTS), row="final")
    assert isinstance(merged, Fused) and any("stability" in v for v in check(merged))
    assert isinstance(row, Fused) and [a.name for a in row.state.accumulators] == ["t"] and not check(row)


@pytest.mark.parametrize("name", FINAL)
@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_what_a_check_finds_wrong_is_one_kernel_of_a_held_row(name: str, target: str) -> None:
    """It was cut in two or three: a state that merges is not needed for a row that a block holds."""
    of, args = FINAL[name]
    report = redfuser.explain(of, args, target=target)
    assert len(report.fused) == 1 and not report.refused
    assert not any(n.code in ("RF901", "RF903", "RF905") for n in report.notes)


def test_it_comes_back_once_and_only_where_a_row_is_held() -> None:
    from redfuser.frontend import import_model
    from redfuser.partition.search import Partitioner

    def search(columns: int) -> Partitioner:
        rows = tuple(torch.rand(4, columns) for _ in range(2))
        return Partitioner(import_model(moments, rows), arch="sm_90a", holds=lambda f: holds(f, "sm_90a"))

    found = search(257)
    (merged,) = found.run().parts
    assert found.settles(merged.key) and found.settles(merged.key)  # asked by the check, and by who gives up
    (row,) = found.run().parts
    assert row.key == merged.key and row.fused.state != merged.fused.state and not found.settles(row.key)
    long = search(131072)
    assert not any(long.settles(r.key) for r in long.run().parts)
