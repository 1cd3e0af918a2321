"""A product and the maps behind it as one region: what joins, what does not, and that it is the program's mathematics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from redfuser.frontend import import_model
from redfuser.partition import cost, judge
from redfuser.partition.search import Partitioner
from tests.partition.helpers import execute, partitioned

HALF = torch.float16


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def products(model: Any, *args: torch.Tensor, arch: str = "sm_90a") -> list[str]:
    return [str(r.cascade) for r in Partitioner(import_model(model, args), arch=arch).run().regions]


def linear(inside: int, outside: int) -> nn.Linear:
    return nn.Linear(inside, outside).to(HALF)


def test_a_map_behind_a_product_that_fills_the_machine_joins_it() -> None:
    """Rows of several axes are those of one matrix; what torch has views for stays with torch."""
    layer = linear(256, 1024)
    (text,) = products(lambda x: F.gelu(layer(x)).view(8, 640, 16, 64).transpose(1, 2), torch.randn(8, 640, 256).to(HALF))
    assert "x0: f16[5120, 256]" in text and "erf" in text and "f16(o + f32(x2[i]))" in text and text.count("sum[") == 1


def test_what_a_library_does_itself_is_left_to_it_and_so_are_small_products() -> None:
    layer, big = linear(256, 1024), torch.randn(5120, 256).to(HALF)
    assert not products(layer, big)
    assert not products(lambda x: F.gelu(layer(x)), big[:512])
    assert not products(lambda x: F.gelu(layer(x)), torch.cat([big, big]), arch="cpu")
    assert not products(lambda x: F.gelu(layer(x)), torch.cat([big, big]), arch="sm_80")  # no roles there
    assert not products(lambda x: F.gelu(F.conv2d(x, torch.randn(256, 64, 3, 3).to(HALF))), torch.randn(8, 64, 66, 66).to(HALF))


def test_few_rows_are_columns_and_the_gates_matrices_are_read_once() -> None:
    """A step of decoding: two matrices are all that is read; one product of as few tiles is shared out by a library."""
    few, gate, up = (torch.empty(*s, dtype=HALF) for s in ((8, 2048), (8192, 2048), (8192, 2048)))
    (text,) = products(lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), few, gate, up)
    assert text.count("sum[l]") == 2
    assert not products(lambda x, g: F.gelu(F.linear(x, g)), few, gate)
    wide = torch.empty(18944, 2048, dtype=HALF)  # 148 tiles: sixteen of them by themselves
    assert not any("sum[" in text for text in products(lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), few, wide, wide))


def test_products_of_float32_are_the_librarys() -> None:
    """Matrix units round it, and sixty-four columns walked by the cores took 2.4 ms where a library's product takes .04."""
    x, w, t = torch.empty(16, 4096, 256), torch.empty(16, 256, 64), torch.empty(16, 4096, 1)
    assert not products(lambda x, w, t: (x @ w) / t, x, w, t)
    (text,) = products(lambda x, w, t: (x @ w) / t, *(y.to(HALF) for y in (x, w, t)))
    assert "sum[l]" in text


def test_a_gate_and_what_it_lets_through_are_one_kernel() -> None:
    """Two products of one operand; the third, behind them, is the library's."""
    (text,) = products(Gated(512, 1024).to(HALF), torch.randn(5120, 512).to(HALF))
    assert text.count("sum[l] f32(x0[") == 2 and "sigmoid" in text and "return y\n" in f"{text}\n"


def rms(h: torch.Tensor, g: torch.Tensor | None = None) -> torch.Tensor:
    n = (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(h.dtype)
    return n if g is None else n * g


def chain(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = r + F.linear(x, w)
    return h, F.linear(rms(h), v)


def operands(rows: int = 1400, depth: int = 1032, width: int = 1528) -> tuple[torch.Tensor, ...]:
    shapes = ((rows, depth), (rows, width), (width, depth), (width, width))
    return tuple(torch.randn(s).to(HALF) for s in shapes)


def test_a_norm_between_two_products_is_the_end_of_one_and_a_scale_of_the_other() -> None:
    """GEMM, residual, RMSNorm, GEMM: the row and its squares leave with the first, the second reads the row itself."""
    first, second = products(chain, *operands())
    assert "return y, y1" in first and first.count("sum[") == 2 and "y[i, l] = x2[i, l] + f16(s)" in first
    assert "sum[l] f32(f16(f32(x0[b, l]) * rsqrt(" in second and second.count("sum[") == 1
    first, second = products(lambda x, r, w, v: chain(x, r, w, v)[1], *operands())  # in memory, whoever else reads it
    assert "return y, y1" in first


@pytest.mark.parametrize(("model", "args"), [
    (lambda x, r, w, v: (*chain(x, r, w, v), rms(r + F.linear(x, w))), operands()),  # the scaled rows are a result
    (chain, operands(width=520)), (chain, operands(rows=200)),  # tiles that do not fill the machine
], ids=["read besides", "narrow", "few"])
def test_rows_that_are_written_scaled_are_the_norms(model: Any, args: tuple[torch.Tensor, ...]) -> None:
    assert not any("sum[l] f32(f16(f32(x0" in t for t in products(model, *args))


def test_a_variance_is_not_added_up_where_the_row_is_made() -> None:
    """It is about the mean of the whole row, whose tile a block has in its registers once."""
    texts = products(lambda x, r, w, v: (h := r + F.linear(x, w), F.linear(F.layer_norm(h, h.shape[-1:]), v)), *operands())
    assert texts and not any("sum[c]" in t for t in texts)


def test_the_chains_mathematics_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, r, w, v = operands(72, 1032, 520)
    monkeypatch.setattr(cost, "_in_turns", lambda d, tall, across, several=1: (1 << 20, 0))  # as if tiles took no time
    imported = import_model(chain, (x, r, w, v))
    p = Partitioner(imported, arch="sm_90a").run()
    assert len(p.regions) == 2
    h, y = execute(imported, p, (x, r, w, v))
    eager = chain(*(t.double() for t in (x, r, w, v)))
    for got, true in zip((h, y), eager, strict=True):
        assert (got.double() - true).abs().max() < 2e-3 * true.abs().max()


def test_a_product_gets_no_second_result() -> None:
    """Half of a rotary embedding: the product is read as it is besides."""
    layer = linear(256, 1024)
    _, p = partitioned(lambda x, c: (h := layer(x)) * c + torch.cat([-h[..., 512:], h[..., :512]], -1),
                       (torch.randn(5120, 256).to(HALF), torch.randn(5120, 1024).to(HALF)))
    assert not p.regions and len(p.maps) == 1


def test_a_scale_of_what_attention_reads_belongs_to_its_product() -> None:
    """The attention reads the scaled queries alone, whatever it looked at on the way."""
    q, k = linear(256, 512), linear(256, 512)

    def attend(x: torch.Tensor) -> torch.Tensor:
        a, b = (y.view(5, 2048, 8, 64).transpose(1, 2) for y in (q(x) * 0.125, k(x)))
        return F.scaled_dot_product_attention(a, b, b, scale=1.0)

    texts = products(attend, torch.randn(5, 2048, 256).to(HALF))
    assert len(texts) == 2 and "* f16(0.125)" in texts[0] and "exp" in texts[1]


@pytest.mark.parametrize("model", [
    lambda: (Gated(24, 40), (3, 5, 24)), lambda: (nn.Sequential(nn.Linear(24, 40), nn.GELU()), (3, 5, 24)),
    lambda: (nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8)), (2, 24))], ids=["gated", "gelu", "relu"])
def test_the_mathematics_is_the_programs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "pays_alone", lambda d: cost.product_alone(d) and len(d.units) > 2 and len(d.rows) < 3)
    module, shape = model()
    x = torch.randn(*shape)
    imported, p = partitioned(module, (x,))
    assert p.regions
    torch.testing.assert_close(execute(imported, p, (x,))[0], module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of", [
    lambda x, w, u: F.silu(F.linear(x, w)) * F.linear(x, u), lambda x, w, u: F.linear(x, w),
    lambda x, w, u: F.linear(x, w, u[:, 0])], ids=["gate", "bare", "bias"])
def test_products_with_one_vector_are_walks_of_rows(of: Any) -> None:
    """A library reads the matrix as often and is slower; of several rows, of columns, or of little it is left to itself."""
    x, w, u = torch.randn(1, 1, 1024), torch.randn(512, 1024), torch.randn(512, 1024)
    imported = import_model(of, (x, w, u))
    found = Partitioner(imported, arch="sm_90a").run()
    assert found.regions and not any("matmul" in k for k in found.kept)
    torch.testing.assert_close(execute(imported, found, (x, w, u))[0], of(x, w, u), rtol=1e-4, atol=1e-4)
    assert not any("sum[" in t for t in products(of, x.expand(1, 7, 1024), w, u))
    assert not any("sum[" in t for t in products(of, x, w, u, arch="sm_80"))  # nobody has measured there
    assert not any("sum[" in t for t in products(of, x, w, u, arch="cpu"))


def test_columns_and_small_matrices_are_the_librarys() -> None:
    x = torch.randn(1, 1024)
    assert not products(lambda x, w: x @ w, x, torch.randn(1024, 512))
    assert not products(lambda x, w: F.linear(x, w), x, torch.randn(64, 1024))


class OneHead(nn.Module):
    """Attention of one narrow head over fewer keys, with its projections (SegFormer, PVT): the heads' permutations are views."""

    def __init__(self, n: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(n, n) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = self.q(x) @ self.k(y).mT * x.shape[-1] ** -0.5
        return self.o(torch.softmax(s, -1) @ self.v(y))


def test_weights_of_a_softmax_go_to_their_own_product_not_to_the_next() -> None:
    """The last projection once took ``p @ v`` with it, the first the scores, and both matrices of scores were written."""
    x, y = torch.randn(8, 4096, 32).to(HALF), torch.randn(8, 256, 32).to(HALF)
    (text,) = products(OneHead().to(HALF), x, y)
    assert text.count("max[") == 1 and text.count("sum[") == 3 and "exp(" in text


def test_a_norm_before_two_products_takes_none_of_them_away() -> None:
    """What the first product reads is less than what it makes, which the second would have to read."""
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = F.normalize(q.float(), dim=-1).to(HALF) @ k.mT
        return s.tril() @ v

    texts = products(fn, *(torch.randn(4, 8, 1024, 64).to(HALF) for _ in range(3)))
    assert any(text.count("sum[") == 2 and "select(" in text for text in texts)
