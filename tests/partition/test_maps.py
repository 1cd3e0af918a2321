"""Groups of maps: nothing of a block is left to torch operation by operation, what is grouped means what torch computes, and
figures about cascades stay what they are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import redfuser
from redfuser import outer, pipeline
from redfuser.frontend import import_model
from redfuser.partition import Partitioner, partition
from redfuser.partition.maps import absorbed, launches, moves
from redfuser.report import Report
from tests.partition.helpers import execute, flat, source
from tests.seconds import within

BF = torch.bfloat16
WIDE = 1024
"""Wide enough that a product is the library's."""


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def turned(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-b, a), -1)


class Block(nn.Module):
    """Attention and a feed-forward part, as GPT-2, LLaMA and T5 spell them."""

    def __init__(self, kind: str, d: int = WIDE, heads: int = 16) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        bias = kind == "gpt2"
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias) for _ in range(4))
        self.up, self.gate, self.down = nn.Linear(d, 4 * d, bias), nn.Linear(d, 4 * d, bias), nn.Linear(4 * d, d, bias)
        self.w1, self.w2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.register_buffer("frequency", 10000.0 ** -(torch.arange(0, d // heads, 2) / (d // heads)))

    def norm(self, x, w):
        if self.kind == "gpt2":
            return F.layer_norm(x, x.shape[-1:], w)
        h = x.float()
        return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x, self.w1)
        q, k, v = (f(y).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.kind == "llama":
            a = torch.arange(n)[:, None].float() * self.frequency.float()
            a = torch.cat((a, a), -1)
            cos, sin = a.cos().to(x.dtype), a.sin().to(x.dtype)
            q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind != "t5", scale=1.0 if self.kind == "t5" else None)
        x = x + self.o(a.transpose(1, 2).reshape(b, n, d))
        y = self.norm(x, self.w2)
        if self.kind == "gpt2":
            return x + self.down(gelu(self.up(y)))
        return x + self.down((F.silu if self.kind == "llama" else gelu)(self.gate(y)) * self.up(y))


def block(kind):
    torch.manual_seed(0)
    return Block(kind).to(BF).eval(), (torch.randn(1, 96, WIDE).to(BF),)


def chains(search: Partitioner) -> list[tuple[str, str]]:
    """Pairs of operations that torch runs one after the other, the second on the first one's result, with nothing else between
    them that one kernel could not have."""
    found = [*search.accepted, *search.mapped]
    live = search.graph.live({v for f in found for v in f.outlined.inputs.values()},
                             {v for f in found for v in f.outlined.outputs.values()})
    made = {v for f in found for v in f.outlined.outputs.values()}
    constant = search.graph.fixed()
    eager = [u for u in search.graph.units if launches(u) and u.var in live and u.var not in made
             and not absorbed(u) and u not in constant]

    def behind(u):
        for n in u.args:
            if n.unit is not None:
                yield from behind(n.unit) if moves(n.unit) else (n.unit,)

    def apart(p, u):
        between = p.descendants & u.ancestors
        return any(between >> x.index & 1 and (x.reducing or x.gap) for x in search.graph.units)

    search.graph.reset()
    return [(p.var, u.var) for u in eager for p in behind(u) if p in eager and id(p.provenance) != id(u.provenance)
            and not apart(p, u)]


@pytest.mark.parametrize(("kind", "groups"), [("gpt2", 1), ("llama", 4), ("t5", 1)])
def test_no_chain_of_maps_of_a_block_is_left_to_torch(kind, groups):
    model, args = block(kind)
    imported = import_model(model, args)
    search = Partitioner(imported)
    with within(10):
        p = search.run()
    assert len(p.maps) == groups and chains(search) == [] and not p.unmapped
    plain = Partitioner(imported, maps=False)
    without = plain.run()
    assert chains(plain) and not without.maps and [r.key for r in without.regions] == [r.key for r in p.regions]  # cascades stay what they are
    with torch.no_grad():
        want, got = flat(model(*args)), execute(imported, p, args)
    for g, w in zip(got, want, strict=True):
        assert float((g.double() - w.double()).abs().max()) <= 3e-2 * float(w.double().abs().max())


def grouped(f, *args):
    imported = import_model(f, args)
    p = partition(imported)
    with torch.no_grad():
        want = flat(f(*args))
    for g, w in zip(execute(imported, p, args), want, strict=True):
        assert g.dtype == w.dtype and torch.equal(g.isnan(), w.isnan())
        finite = w.isfinite() & g.isfinite()
        assert torch.allclose(g[finite].double(), w[finite].double(), rtol=1e-2 if w.dtype == BF else 1e-5, atol=1e-3)
    return p


def test_a_value_that_is_also_used_elsewhere_is_written():
    def f(x, y, w):
        h = torch.relu(x) + y
        return h @ w, torch.sigmoid(h) * 2.0

    p = grouped(f, torch.randn(64, 48), torch.randn(64, 48), torch.randn(48, 32))
    (r,) = p.maps
    assert len(r.outputs) == 2 and len(r.inputs) == 2 and "x0[l]" in str(r.cascade)  # flattened: no tensor is broadcast


def test_what_a_library_reads_is_read_from_memory_by_others_too():
    """The sum before the activation is kept alive for nobody, although computing the activation anew would be cheap."""
    def blocks(x, b, w, v):
        h = F.relu(x * 2 + b)
        return F.relu(torch.mm(torch.mm(h, w), v) + h) * 2

    x, b, w, v = (torch.randn(WIDE, WIDE).to(BF) for _ in range(4))
    first, last = grouped(blocks, x, b, w, v).maps
    (kept,) = first.outputs.values()
    assert kept in last.inputs.values() and len(first.cascade.outputs) == 1


def test_a_broadcast_keeps_its_axes_and_a_transposed_operand_is_read_where_it_is():
    p = grouped(lambda x, r, c: (x.mT + r[:, None]) * c, torch.randn(40, 30), torch.randn(30), torch.randn(40))
    (r,) = p.maps
    assert len(r.cascade.axes) == 2 and "[l, i]" in str(r.cascade)


def test_what_is_dear_is_not_computed_for_every_reader():
    def f(x, s):
        return x * torch.tanh(s)[:, None] + torch.exp(s)[:, None]

    p = grouped(f, torch.randn(64, 48), torch.randn(64))
    text = "\n".join(str(r.cascade) for r in p.maps)
    assert "tanh" in text and not any("tanh" in str(r.cascade) and "i" in {a.name for a in r.cascade.axes} for r in p.maps)


def test_an_operation_that_is_dear_inside_is_read_whole():
    """Of GELU's parts the error function is dear; what is in memory is GELU."""
    p = grouped(lambda x, s: torch.maximum(F.gelu(s), x).float(), torch.randn(3, 1, 96).to(BF), torch.randn(96).to(BF))
    (r,) = p.maps
    assert "erf" not in "".join(map(str, r.cascade.stmts)) and set(r.inputs.values()) == {"x", "gelu_f32"}


def test_calls_that_relax_has_no_op_for_are_maps_and_keep_the_digits_of_small_numbers():
    def f(x, y):
        return torch.log1p(x) * torch.expm1(y), F.softplus(x * 10 - 40), torch.fmax(x, y) + torch.fmin(x, y), F.logsigmoid(x)

    x = torch.cat([torch.tensor([0.0, 1e-9, -1e-9, 1e-4, -0.2, -0.3, 0.4, 0.6, 7.0, float("nan"), float("inf"), -1.0]),
                   torch.rand(52)]).reshape(4, 16)
    p = grouped(f, x, x.flip(0) * 1e-3)
    assert p.maps and not p.opaque
    for got, want in zip(execute(import_model(f, (x, x.flip(0) * 1e-3)), p, (x, x.flip(0) * 1e-3)), f(x, x.flip(0) * 1e-3),
                         strict=True):
        assert torch.allclose(got, want, rtol=1e-5, atol=0, equal_nan=True)


def test_one_operation_by_itself_stays_with_torch_and_so_does_a_librarys_epilogue():
    assert not grouped(lambda x, y: x + y, torch.randn(64, 48), torch.randn(64, 48)).maps
    assert not grouped(F.softplus, torch.randn(64, 48)).maps
    for several in (F.leaky_relu, F.hardtanh, lambda x: x.clamp(-1, 1), lambda x: x**3):  # one of the program's, several of torch's
        assert len(grouped(several, torch.randn(64, 48)).maps) == 1
    linear = nn.Linear(48, 32).to(BF)
    p = grouped(lambda x: F.gelu(linear(x)), torch.randn(64, 48).to(BF))
    assert not p.maps


@pytest.mark.parametrize(("x", "y", "dtype", "maps"), [
    ((32, 56, 56, 64), (32, 1, 1, 64), torch.float16, 1), ((8, 1024, 512), (512,), torch.bfloat16, 1),
    ((8, 1024, 512), (1, 1024, 512), torch.float16, 1), ((8, 1024, 512), (8, 1024, 512), torch.float16, 0),
    ((8, 64, 512), (512,), torch.float16, 0), ((8, 1024, 512), (512,), torch.float32, 1),
    ((4096, 8, 32), (4096, 8, 1), torch.float32, 1), ((4096, 512), (4096, 512), torch.float32, 0)])
def test_one_operation_beside_what_is_repeated_is_a_kernel(x, y, dtype, maps):
    """torch takes 1.4 to three times what memory does for two shapes; measured from 1 MB on."""
    imported = import_model(lambda a, b: a * b, (torch.randn(x, dtype=dtype), torch.randn(y, dtype=dtype)))
    assert len(partition(imported).maps) == maps


def test_values_at_the_edges():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, 1e-40, -1.0]).repeat(8, 1)
    grouped(lambda x, y: torch.clamp(x, -1.0, 1.0) + torch.maximum(x, y), x, x.flip(-1).contiguous())
    grouped(lambda x: torch.where(x > 0, x.sqrt(), torch.exp(x)), x)


def both(x, y):
    """A cascade and a group of maps."""
    return torch.softmax(x, -1), torch.relu(y) * torch.sigmoid(y)


def test_a_group_without_a_kernel_stays_with_torch_and_says_why(monkeypatch):
    from redfuser import plan
    from redfuser.errors import LoweringError

    real = plan.checked_tiles

    def refuse(program, *rest):
        if program.strategy == "map":
            raise LoweringError("RF903", "for the test")
        return real(program, *rest)

    monkeypatch.setattr("redfuser.plan.checked_tiles", refuse)
    done = pipeline.run(both, (torch.randn(64, 64), torch.randn(64, 48)), arch="sm_90a", build=False)
    assert not done.report.maps and not done.partition.maps and done.report.fused
    assert any(n.code == "RF903" and n.text.startswith("maps left to torch") for n in done.report.notes)


def test_maps_are_counted_apart_and_explained():
    report = redfuser.explain(both, (torch.randn(64, 64), torch.randn(64, 48)), target="sm_90a")
    assert report.coverage == 1.0 and len(report.cascades) == 1 and "cascades 1: fused 1  map kernels 1" in report.summary()
    assert all(m.strategy == "map" and m.fused and "no state" in m.fused_form for m in report.maps)
    assert report.cascade(report.maps[0].name) is report.maps[0]
    assert Report.from_json(report.to_json()) == report
    assert report.without({report.maps[0].kernel: "wrong"}).maps != report.maps


def test_the_cpu_target_leaves_maps_to_torch():
    done = pipeline.run(both, (torch.randn(64, 64), torch.randn(64, 48)), arch="cpu", build=False)
    assert not done.report.maps and done.report.fused


def test_a_map_writes_the_order_in_which_a_library_reads_it():
    """As a conformer turns its queries, time first and batch first again: the product's operand lies in order. A tensor that
    somebody else reads as it was, and one whose lines would lie across, are views."""
    def f(x, c, w, b):
        h = x.transpose(0, 1).unflatten(2, (4, 64))
        h = (h * c[:, None, None] + turned(h) * (1 - c)[:, None, None]).flatten(2)
        return F.linear(h.transpose(0, 1), w, b)

    args = torch.randn(3, 40, 256), torch.randn(40, 64), torch.randn(96, 256), torch.randn(96)
    p = grouped(f, *args)
    text = outer.emit(import_model(f, args), p.parts, {r.name: r.name.replace(".", "_") for r in p.parts}).source
    (written,) = [v for r in p.maps for v in r.outputs.values()]
    assert f"{written} = map_0(" in text and ".transpose(" not in text and ".permute(" not in text
    both = grouped(lambda x, w: (h := torch.relu(x) + 1, F.linear(h.transpose(0, 1), w)), torch.randn(3, 40, 256), args[2])
    across = grouped(lambda x, w: F.linear((torch.relu(x) + 1).transpose(1, 2), w), torch.randn(3, 256, 40), args[2])
    for other in (both, across):
        assert len(other.maps) == 1 and len(other.maps[0].outputs) == 1
        assert [a.name for a in other.maps[0].cascade.axes] == ["l"], "it is written as it is read: one line of elements"


def test_a_batch_norm_of_halves_is_two_kernels_of_torchs():
    """By itself it is a group, in float32 it is not: cuDNN has it in one."""
    def norm(x, m, v):
        return F.batch_norm(x, m, v)

    half = (torch.randn(64, 48).half(), torch.randn(48).half(), torch.rand(48).half() + 0.5)
    p = grouped(norm, *half)
    assert len(p.maps) == 1 and len(p.maps[0].cascade.inputs) == 3
    assert not grouped(norm, *(t.float() for t in half)).maps


def test_what_one_group_writes_no_other_computes_anew() -> None:
    """A ReLU that torch's concatenation of many reads, and a later map: the later group computed it from the sum before, which
    was torch's then, beside the group that has both."""
    def of(x, w, b, at, *more):
        y = torch.relu(F.linear(x, w, b))
        every = torch.stack([y, *more], 1)
        return every, torch.cat([y, (every @ every.mT)[:, at, at]], 1)

    args = (torch.randn(64, 32), torch.randn(32, 32), torch.randn(32), torch.arange(9), *(torch.randn(64, 32) for _ in range(12)))
    imported = import_model(of, args)
    p = Partitioner(imported, arch="sm_90a").run()
    text = source(imported, p)
    assert " + b" not in text and "relu(" not in text and len(p.parts) == 2, text
    for mine, theirs in zip(execute(imported, p, args), of(*args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
