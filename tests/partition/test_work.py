"""Partitioning is bounded by counted work: an unrolled recurrence is left to torch and said so, what is beside it still fuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from redfuser import outer
from redfuser.acrf.state import NotFusable
from redfuser.frontend import import_model
from redfuser.partition import Partitioner, loops, work
from redfuser.partition.work import DERIVED, MODULE, REGION, SEED, WHOLE
from tests.partition.helpers import execute
from tests.seconds import within

STEPS = 48


def delta_rule(q, k, v, beta):
    """A gated delta rule, step by step, between two norms."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    state = torch.zeros(k.shape[0], k.shape[2], v.shape[2])
    out = []
    for t in range(k.shape[1]):
        seen = (state * k[:, t, :, None]).sum(1)
        state = state + k[:, t, :, None] * ((v[:, t] - seen) * beta[:, t, None])[:, None]
        out.append((state * q[:, t, :, None]).sum(1))
    return F.layer_norm(torch.stack(out, 1), (v.shape[2],))


def test_an_unrolled_recurrence_is_bounded_and_what_is_beside_it_fuses():
    args = (torch.randn(2, STEPS, 8), torch.randn(2, STEPS, 8), torch.randn(2, STEPS, 8), torch.rand(2, STEPS))
    imported = import_model(delta_rule, args)
    with within(10):
        search = Partitioner(imported)
        found = search.run()
    assert WHOLE - search.work.left <= WHOLE + SEED + 64 * DERIVED
    assert [x.name.split(".")[0] for x in found.regions].count("norm") >= 1
    assert "RF308" in {n.code for n in found.notes} | {x.reason.code for x in found.refusals}
    assert all(len(f.draft.units) <= REGION for f in search.accepted)
    again = Partitioner(imported).run()  # counted, not timed: the same every time
    assert [str(x.cascade) for x in again.regions] == [str(x.cascade) for x in found.regions]
    with torch.no_grad():
        torch.testing.assert_close(execute(imported, found, args)[0], delta_rule(*args), rtol=2e-4, atol=2e-5)


class Stages(torch.nn.Module):
    """Norms of four widths, each in a module of its own."""

    def __init__(self):
        super().__init__()
        widths = (8, 12, 20, 28)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(n) for n in widths)
        self.steps = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in zip(widths, (*widths[1:], 4), strict=True))

    def forward(self, x):
        for norm, step in zip(self.norms, self.steps, strict=True):
            x = step(norm(x))
        return x


def test_stages_are_given_more_work_than_an_unrolled_loop():
    """What is allowed grows with kinds of reductions in modules of their own; many steps of one module are one."""
    stages = Partitioner(import_model(Stages(), (torch.randn(6, 8),)))
    assert stages.allowed == WHOLE + 7 * MODULE  # four norms and four products

    def growing(x):
        return torch.stack([torch.softmax(x[:, :t], -1).square().sum(-1) for t in range(2, 9)], -1)

    loop = Partitioner(import_model(growing, (torch.randn(4, 16),)))
    assert loop.allowed == WHOLE and len({id(u.lifted) for u in loop.graph.units if u.reducing}) > 6


def test_a_graph_of_torch_compile_is_given_what_its_model_exported_is(tmp_path):
    """Modules keep their names through the capture and the file that the compile process reads, whatever they are called."""
    from redfuser.dynamo.capture import capture
    from redfuser.dynamo.compiler import _write

    x, found = torch.randn(6, 8), []
    model = Stages()
    model.norms.add_module("odd,(; name", torch.nn.LayerNorm(4))
    model.steps.add_module("last", torch.nn.Linear(4, 4))

    def backend(gm, inputs):
        _write(capture(gm, inputs).program, tmp_path / "graph.pt2")
        found.append(Partitioner(import_model(torch.export.load(tmp_path / "graph.pt2"))))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    torch._dynamo.reset()
    assert found[0].allowed == Partitioner(import_model(model, (x,))).allowed == WHOLE + 9 * MODULE
    assert {u.provenance.module for u in found[0].graph.units} >= {"norms.0", "norms.3", "steps.1", "norms.odd____name"}


def test_a_norm_without_work_left_is_a_loss():
    """One operation that is a whole cascade counts among the cascades of the model."""
    imported = import_model(Stages(), (torch.randn(6, 8),))
    search = Partitioner(imported)
    search.work.left = 0
    found = search.run()
    assert [r.reason.code for r in found.refusals if r.name.startswith("norm")] == ["RF308"] * 4 and not found.regions
    assert not [n for n in Partitioner(imported).run().refusals if n.reason.code == "RF308"]


class Cell(torch.nn.Module):
    """A matrix memory with gates (xLSTM), step by step, between norms: every step is three products of its own."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.ModuleList(torch.nn.Linear(16, n) for n in (16, 16, 16, 2, 2))
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v, enter, forget = (w(F.layer_norm(x, (16,))) for w in self.wide)
        q, k, v = (y.view(2, -1, 2, 8) for y in (q, k, v))
        memory, norm, top, out = torch.zeros(2, 2, 8, 8), torch.zeros(2, 2, 8), torch.zeros(2, 2), []
        for t in range(x.shape[1]):
            kept = F.logsigmoid(forget[:, t]) + top
            new = torch.maximum(kept, enter[:, t])
            a, b, top = (kept - new).exp(), (enter[:, t] - new).exp(), new
            memory = a[..., None, None] * memory + b[..., None, None] * (k[:, t, :, :, None] @ v[:, t, :, None])
            norm = a[..., None] * norm + b[..., None] * k[:, t]
            read = (q[:, t, :, None] @ memory)[..., 0, :]
            scale = (q[:, t, :, None] @ norm[..., None])[..., 0]
            out.append(read / (torch.maximum(scale.abs(), (-top)[..., None].exp()) + 1e-6))
        y = F.layer_norm(torch.stack(out, 1).reshape(2, -1, 16), (16,))
        return F.rms_norm(x + self.out(y), (16,))


@pytest.mark.parametrize("whole", [20_000, 60_000])
def test_a_loop_of_products_leaves_work_for_the_norms_around_it(monkeypatch, whole):
    """The norm in front is looked at last. All three have kernels, however little there was for the loop."""
    monkeypatch.setattr(work, "WHOLE", whole)
    monkeypatch.setattr(work, "MODULE", 0)
    search = Partitioner(import_model(Cell(), (torch.randn(2, 16, 16),)), arch="cpu", maps=False)
    found = search.run()
    assert sum(r.name.startswith("norm") for r in found.regions) == 3 and not found.refusals


def test_what_is_given_up_takes_nothing_else_with_it():
    """When regions are grown again, smaller, what is known of the others needs no work, and is not lost for want of any."""
    search = Partitioner(import_model(Stages(), (torch.randn(6, 8),)))
    before = [r.name for r in search.run().regions]
    search.work.left = -1
    assert len(before) == 4 and search.give_up({before[0]: NotFusable("RF450", "", "no kernel of it builds", "", "")})
    assert len(search.run().regions) >= 3


def test_costs_are_of_the_target():
    """What pays on a large machine need not on a small one, and the other way round."""
    from redfuser.partition.cost import share_of_device

    args = tuple(torch.randn(4, 64, 32, dtype=torch.float16) for _ in range(3))
    imported = import_model(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, args)
    drafts = {}
    for arch in ("sm_86", "sm_90a", "cpu"):
        search = Partitioner(imported, arch=arch)
        search.run()
        drafts[arch] = next(d for d in search.drafts.values() if getattr(d, "rows", None) and d.inner)
    busy = {arch: share_of_device(d, d.inner[0]) for arch, d in drafts.items()}
    assert busy["cpu"] == busy["sm_90a"] < busy["sm_86"]


def test_a_long_inner_axis_waits_as_the_part_does():
    """A router 4096 wide: one block walks the axis step by step, where a library shares it out."""
    from redfuser.partition.cost import inner_pays

    args = (torch.empty(2048, 4096, dtype=torch.float16), torch.empty(128, 4096, dtype=torch.float16))
    search = Partitioner(import_model(lambda x, w: torch.softmax(x @ w.mT, -1), args), arch="sm_90a")
    search.run()
    draft, product = next((d, i) for d in search.drafts.values() if getattr(d, "rows", None) for i in d.inner if i.contraction)
    machine = draft.machine
    said = {}
    for other in ({}, {"waits": 0.0}, {"ahead": 1}, {"step": 1024}, {"latency": 1e-7}):
        draft.machine = replace(machine, **other)
        said[tuple(other)] = inner_pays(draft, product)
    assert [k for k, pays in said.items() if not pays] == [()]


def outer_rule(q, k, v, beta, gate):
    """A gated delta rule in another spelling: products with a vector, an outer product."""
    state, out = torch.zeros(k.shape[1], v.shape[1]), []
    for t in range(k.shape[0]):
        state = state * gate[t].exp()
        state = state + torch.outer(k[t], (v[t] - k[t] @ state) * beta[t])
        out.append(q[t] @ state)
    return torch.stack(out)


def test_steps_that_differ_in_places_only_are_one_cascade():
    args = (torch.randn(14, 8), torch.randn(14, 8), torch.randn(14, 8), torch.rand(14), torch.randn(14))
    imported = import_model(outer_rule, args)
    found = Partitioner(imported).run()
    steps = [x for x in found.regions if x.name.startswith("rescale_linear")]
    assert len(steps) > 5 and len({x.key for x in steps}) <= 3  # of two steps each; the first and the last differ
    assert all(outer.emit_region(imported, r) for r in found.regions), "a slice that is read twice is one input"
    with torch.no_grad():
        torch.testing.assert_close(execute(imported, found, args)[0], outer_rule(*args), rtol=2e-4, atol=2e-5)


def test_steps_of_growing_length_are_left_to_torch():
    def running(x):
        return torch.stack([(torch.softmax(x[:, :t], -1) * x[:, :t]).sum(-1) for t in range(2, 14)], -1)

    found = Partitioner(import_model(running, (torch.randn(4, 16),))).run()
    assert not found.regions and [set(r.outputs.values()) for r in found.maps] == [{"stack"}]
    assert "RF308" in {n.code for n in found.notes} | {x.reason.code for x in found.refusals}


def test_few_alike_and_unequal_distances_are_no_loop():
    def lengths(*numbers):
        return [f"o[i] = sum[l] x0[i, l] * 2.5 over l = {n}" for n in numbers]

    assert len({loops.template(x) for x in lengths(3, 64, 1280)}) == 1
    assert loops.unrolled(lengths(*range(5, 14))) and not loops.unrolled(lengths(*range(5, 13)))
    assert not loops.unrolled(lengths(*(2**k for k in range(4, 16)))) and not loops.alike(lengths(1, 2, 3))
