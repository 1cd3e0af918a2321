"""What must not be fused, and why: every case names the code or the region that is allowed."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from redfuser.frontend import import_model
from redfuser.partition import partition
from tests.e2e.models import gemma2
from tests.partition.helpers import execute, flat, partitioned
from tests.partition.spellings import B, D, H, I, L, qkv, r, scores


def names(p):
    return [n.name.split(".")[0] for n in p.regions]


def agrees(f, args, imported, p):
    with torch.no_grad():
        want = flat(f(*args))
    for g, w in zip(execute(imported, p, args), want, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-5)


def test_returned_attention_weights_cut_the_cascade():
    def f(q, k, v):
        p = torch.softmax(scores(q, k), -1)
        return p @ v, p

    args = qkv()
    imported, p = partitioned(f, args)
    assert names(p) == ["softmax"]
    reasons = [x.reason for x in p.refusals]
    assert [x.code for x in reasons] == ["RF303"]
    assert "softmax" in reasons[0].provenance.op and reasons[0].provenance.source and reasons[0].help
    agrees(f, args, imported, p)


def test_an_intermediate_that_another_reduction_reads_is_not_recomputed():
    def f(x, w):
        p = torch.softmax(x, -1)
        return p @ w, p.cumsum(-1)

    args = (r(I, L), r(L, 3))
    imported, p = partitioned(f, args)
    assert names(p) == ["softmax"]
    assert [m.name for m in p.maps] == ["scan.0"] and not any(n.code == "RF301" for n in p.notes)
    agrees(f, args, imported, p)


def test_a_scan_that_the_importer_does_not_know_says_so_too():
    _imported, p = partitioned(lambda x: torch.logcumsumexp(torch.softmax(x, -1), -1), (r(I, L),))
    assert names(p) == ["softmax"]
    assert ["it is a scan" in x.reason.why for x in p.refusals] == [True]


def test_a_reduced_temperature_is_refused_by_the_algebra_and_its_prefix_stays():
    """exp(x / d) with a reduced d does not separate; the first sum and the map over its row still share a kernel."""

    def f(x):
        return torch.exp(x / x.abs().sum(-1, keepdim=True)).sum(-1)

    args = (r(I, L),)
    imported, p = partitioned(f, args)
    assert [x.reason.code[:3] for x in p.refusals] == ["RF2"]
    assert p.refusals[0].reason.provenance.op and p.refusals[0].reason.prefix == ("t",)
    assert [len([s for s in n.cascade.stmts if hasattr(s, "reducer")]) for n in p.regions] == [1]
    assert p.kept == {"relax.sum": 1}
    agrees(f, args, imported, p)


def test_the_longest_prefix_is_outlined_when_the_tail_is_refused():
    def f(x):
        m = x.mean(-1, keepdim=True)
        var = ((x - m) ** 2).mean(-1, keepdim=True)
        return torch.exp(x * torch.sqrt(var)).sum(-1)

    args = (r(I, L),)
    imported, p = partitioned(f, args)
    assert [x.reason.code[:3] for x in p.refusals] == ["RF2"]
    assert len(p.regions) == 1
    kinds = [s.reducer.kind for s in p.regions[0].cascade.stmts if hasattr(s, "reducer")]
    assert kinds == ["sum", "sum"]
    agrees(f, args, imported, p)


def test_pointwise_chains_and_single_reductions_stay():
    for f in (lambda x: torch.tanh(x) * 2 + x, lambda x: x.sum(-1), lambda x: x.argmax(-1), lambda x: (x * x).mean(-1)):
        _imported, p = partitioned(f, (r(I, L),))
        assert not p.regions and not p.refusals


def test_plain_products_stay_with_the_library():
    def mlp(x, w1, w2):
        return F.gelu(x @ w1) @ w2

    def swiglu(x, w1, w3, w2):
        return (F.silu(x @ w1) * (x @ w3)) @ w2

    for f, args in ((mlp, (r(9, 16), r(16, 24), r(24, 16))), (swiglu, (r(9, 16), r(16, 24), r(16, 24), r(24, 16)))):
        _imported, p = partitioned(f, args)
        assert not p.regions


def test_a_norm_before_wide_projections_is_a_kernel_of_its_own():
    def f(x, g, w):
        return F.rms_norm(x, (x.shape[-1],), g, 1e-6) @ w

    _imported, p = partitioned(f, (r(32, 64), r(64), r(64, 640)))
    assert names(p) == ["norm"] and p.kept == {"relax.matmul": 1}
    assert not p.refusals  # a projection that stays with the library is no failure


def test_equal_extents_do_not_make_one_axis():
    """Column means of a square matrix read per row: the axes have one extent and are two."""

    def f(x, y):
        return torch.exp(x - y.amax(0, keepdim=True)).sum(-1)

    args = (r(6, 6), r(6, 6))
    imported, p = partitioned(f, args)
    assert not p.regions
    agrees(f, args, imported, p)


def test_a_row_maximum_of_a_longer_tensor_is_no_common_row():
    def f(x, y):
        return torch.exp(x - y.amax(-1, keepdim=True)).sum(-1)

    args = (r(I, L), r(I, L + 1))
    _imported, p = partitioned(f, args)
    assert not p.regions and any(n.code == "RF302" for n in p.notes)


def test_regions_are_convex():
    """The norm's result feeds a product whose result is added to what the norm read."""

    def f(x, g, w):
        h = x + 1.0
        y = F.rms_norm(h, (x.shape[-1],), g, 1e-6) @ w
        z = h + y
        return F.rms_norm(z, (x.shape[-1],), g, 1e-6)

    args = (r(32, 640), r(640), r(640, 640))
    imported, p = partitioned(f, args)
    assert len(p.regions) == 2
    agrees(f, args, imported, p)


def test_rotation_after_a_norm_is_left_outside():
    def f(q, g, cos, sin):
        q = F.rms_norm(q, (q.shape[-1],), g, 1e-6)
        half = q.shape[-1] // 2
        return q * cos + torch.cat([-q[..., half:], q[..., :half]], -1) * sin

    args = (r(B, H, I, D), r(D), r(I, D), r(I, D))
    imported, p = partitioned(f, args)
    assert names(p) == ["norm"]
    agrees(f, args, imported, p)


def test_partition_is_deterministic_and_layers_share_their_text():
    def f(x, g, w):
        for _ in range(3):
            x = x + torch.tanh(F.rms_norm(x, (x.shape[-1],), g, 1e-6)) @ w
        return x

    args = (r(I, 640), r(640), r(640, 640))
    first, second = (partitioned(f, args)[1] for _ in range(2))
    assert [str(a.cascade) for a in first.regions] == [str(b.cascade) for b in second.regions]
    assert len(first.regions) == 3


def test_norms_that_the_algebra_will_not_join_are_no_loss_when_each_is_fused():
    """Gemma2 adds a norm to the residual and norms the sum: raw moments do not join the two (RF207); both are fused."""
    imported = import_model(*gemma2(torch.float16))
    p = partition(imported)
    assert not p.refusals and "relax.mean" not in p.kept
    about = [n.text for n in p.notes if n.code == "RF207"]
    assert about and all("each is fused by itself" in text for text in about)


def test_a_refused_norm_whose_first_sum_stays_is_a_refusal():
    def rms(x):
        w = x.float()
        return (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)

    _imported, p = partitioned(lambda x, y: rms(x + rms(y)), (r(I, L).half(), r(I, L).half()))
    assert [x.reason.code for x in p.refusals] == ["RF207"] and [r.name for r in p.maps][:1] == ["statistics.0"]


def test_a_cut_between_reductions_over_one_row_is_never_silent():
    def f(x):
        best = x.topk(1, -1)
        return torch.exp(x - best.values).sum(-1), best.indices

    args = (r(I, L),)
    imported, p = partitioned(f, args)
    assert [x.reason.code for x in p.refusals] == ["RF306"] and p.refusals[0].reason.provenance.source
    assert p.kept == {"relax.sum": 1}
    agrees(f, args, imported, p)


def test_a_norm_whose_result_is_read_elsewhere_is_not_cut_from_a_top_k_over_another_axis():
    """DeepSeek's router: the norm's row is the hidden axis, the top-k's the experts'; nothing was cut in two."""

    def f(x, g, w):
        y = F.rms_norm(x, (x.shape[-1],), g, 1e-6)
        return y, torch.sigmoid(y @ w).topk(2, -1).indices

    _imported, p = partitioned(f, (r(I, 64), r(64), r(64, 16)))
    assert not p.refusals


def test_top_1_keeps_the_axis_of_ranks_through_maps_and_whole_rows():
    def scaled(x):
        found = torch.softmax(x, -1).topk(1, -1)
        return found.values * 2.0, found.indices

    def squeezed(x):
        return torch.softmax(x, 0).topk(1, 0).values.squeeze(0) + 1.0

    def spread(x):
        return x * torch.softmax(x, -1).topk(1, -1).values

    for f in (scaled, squeezed, spread):
        args = (r(I, L),)
        imported, p = partitioned(f, args)
        assert names(p) == ["topk"] and not p.refusals
        agrees(f, args, imported, p)
