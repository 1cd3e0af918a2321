"""Attention without a softmax over the keys: what must be written in any case is a cut, and what is left on either side is
fused or refused by itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from redfuser import pipeline
from tests.partition.helpers import execute, flat, partitioned

W = torch.linspace(-1, 1, 16 * 24).sin().view(16, 24)


def phi(x):
    return F.elu(x) + 1


def transposed(q, k, v):
    q, k = phi(q), phi(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def einsum(q, k, v):
    q, k = phi(q), phi(k)
    z = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(-2)) + 1e-6)
    return torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), z)


def product_and_sum(q, k, v):
    q, k = phi(q), phi(k)
    return (q @ (k.mT @ v)) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def efficient(q, k, v):
    return torch.softmax(q, -1) @ (torch.softmax(k, -2).mT @ v)


def rms_after(q, k, v):
    y = phi(q) @ (phi(k).mT @ v)
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


def performer(q, k, v):
    def f(x):
        return torch.exp(x @ W - (x * x).sum(-1, keepdim=True) / 2) / 24 ** 0.5

    q, k = f(q), f(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def performer_below_its_maximum(q, k, v):
    def f(x):
        y = x @ W
        return torch.exp(y - (x * x).sum(-1, keepdim=True) / 2 - y.amax(-1, keepdim=True)) + 1e-4

    q, k = f(q), f(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def reductions(p):
    return sorted(sum("= sum[" in line or "= max[" in line for line in str(r.cascade).splitlines()) for r in p.regions)


def qkv(n=32, d=16):
    return tuple(torch.randn(2, 3, n, d) for _ in range(3))


@pytest.mark.parametrize(("f", "want"), [
    (transposed, [2, 2]), (einsum, [2]), (product_and_sum, [2, 2]), (efficient, [3, 3]), (rms_after, [1]), (performer, [3, 3]),
    (performer_below_its_maximum, [2, 4])], ids=lambda x: getattr(x, "__name__", ""))
def test_both_sides_of_what_is_written_anyway_are_fused(f, want):
    args = qkv()
    imported, p = partitioned(f, args)
    assert reductions(p) == want and not p.refusals
    with torch.no_grad():
        for got, y in zip(execute(imported, p, args), flat(f(*args)), strict=True):
            torch.testing.assert_close(got, y, rtol=2e-4, atol=2e-5)


def test_features_are_not_written_for_what_adds_them_up_beside_a_product():
    for f, made in ((transposed, False), (product_and_sum, True)):
        _, p = partitioned(f, qkv())
        keys, queries = p.regions
        assert len(keys.inputs) == 2 and "exp" in str(keys.cascade)
        assert len(queries.inputs) == 3 and ("exp" in str(queries.cascade)) is made  # for two products they are written once


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90a", torch.float16), ("cpu", torch.float32)])
def test_the_quotient_has_a_kernel(arch, dtype):
    args = tuple(torch.randn(2, 4, 64, 32, dtype=dtype) for _ in range(3))
    report = pipeline.run(transposed, args, arch=arch, build=False, verify="0").report
    assert [c.name for c in report.fused] == ["statistics.0"] and report.coverage == 1.0


def test_a_sum_of_columns_is_made_beside_the_rows_that_read_it():
    """Features with a constant beside the exponential: a term of the products that no row has. Its weights are exactly 1."""
    args = (*(torch.randn(2, 40, 16) for _ in range(2)), torch.randn(2, 24, 16), torch.randn(2, 24))

    def queries(q, t, kv, k):
        y = q @ W
        f = torch.exp(y - (t * t).sum(-1, keepdim=True) - y.amax(-1, keepdim=True)) + 1e-4
        return (f @ kv) / (f @ k[..., None])

    done = pipeline.run(queries, args, arch="sm_90a", build=False)
    (made,) = [p for p in done.produced.values() if p.reason is None and "rescale" in p.name]
    assert "_weight[i, j] = 1.0" in made.stages["tiles"] and not done.report.refused


def test_two_matrix_products_of_one_row_stay_with_the_library():
    x = torch.randn(8, 64, 32)
    for f in (lambda x, a, b: F.silu(x @ a) * (x @ b), lambda x, a, b: (x @ a) / (x @ b)):
        _, p = partitioned(f, (x, torch.randn(32, 48), torch.randn(32, 48)))
        assert not p.regions and not p.refusals


def test_a_product_of_few_rows_stays_with_the_library():
    _, p = partitioned(lambda x, a, b: (x @ a) / (x @ b), (torch.randn(16, 1024), torch.randn(1024, 512), torch.randn(1024, 1)))
    assert not p.regions and not p.refusals


@pytest.mark.parametrize("f", [
    lambda y, t: torch.exp(y - t / 2 - y.amax(-1, keepdim=True)), lambda y, t: y * t - y.mean(-1, keepdim=True),
    lambda y, t: ((y - t) * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).mT])
def test_a_statistic_comes_back_to_another_map_of_its_row(f):
    args = (torch.randn(2, 16, 24), torch.rand(2, 16, 1))
    imported, p = partitioned(f, args)
    assert reductions(p) == [1] and not p.refusals
    with torch.no_grad():
        torch.testing.assert_close(execute(imported, p, args)[0], f(*args), rtol=2e-4, atol=2e-5)
