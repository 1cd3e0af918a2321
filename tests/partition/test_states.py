"""One step of a state is one kernel: what it writes of its row it also reduces, where no two rows weigh what is reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from redfuser.acrf.cascade import Cascade
from redfuser.frontend import import_model
from redfuser.partition import Partition, per_step, reads
from redfuser.partition.search import Partitioner
from redfuser.strategies.select import ALIKE, select
from redfuser.target import target
from redfuser.untuned import untuned
from tests.partition.helpers import execute
from workloads.correctness import states


def found(model: Callable[..., object], *inputs: Tensor | tuple[int, ...]) -> Partition:
    args = tuple(x if isinstance(x, Tensor) else torch.randn(x) for x in inputs)
    return Partitioner(import_model(model, args)).run()


STEPS = {
    states.delta: ((2, 3, 32, 48), (2, 3, 32), (2, 3, 32), (2, 3, 48), (2, 3), (2, 3)),
    states.transposed_delta: ((2, 3, 48, 32), (2, 3, 32), (2, 3, 32), (2, 3, 48), (2, 3, 32)),
    states.selective: ((2, 3, 32, 16), (2, 3, 32), (2, 3), (3,), (2, 16), (2, 16)),
    states.scanned: ((2, 40, 16), (2, 40), (2, 40), (40, 16), (2, 16), (2, 16), (2, 40)),
    states.gated_linear: ((2, 3, 32, 48), (2, 3, 32), (2, 3, 32), (2, 3, 48), (2, 3, 32)),
    states.normalised: ((2, 3, 32, 48), (2, 3, 32), (2, 3, 32), (2, 3, 32), (2, 3, 48)),
    states.exponential_gates: ((2, 3, 32, 48), (2, 3, 32), (2, 3, 32), (2, 3, 32), (2, 3, 48), (2, 3), (2, 3)),
}


def of_the_state(p: Partition, shape: tuple[int, ...]) -> list[Cascade]:
    """Kernels that read or write something as large as the state."""
    return [r.cascade for r in p.parts if any(prod(t.shape) == prod(shape) for t in r.cascade.inputs)]


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_a_step_reads_its_state_once(step: Callable[..., object]) -> None:
    """Updated by one kernel and read by another it was two passes or three: 34.9 us of a step of RWKV, 102 of a delta rule (H200)."""
    shapes = STEPS[step]
    (kernel,) = of_the_state(found(step, *shapes), shapes[0])
    assert len(kernel.outputs) >= 2


@pytest.mark.parametrize("step", [states.delta, states.scanned], ids=lambda f: f.__name__)
def test_and_is_what_torch_makes_of_it(step: Callable[..., object]) -> None:
    torch.manual_seed(3)
    args = tuple(torch.randn(s) for s in STEPS[step])
    imported = import_model(step, args)
    p = Partitioner(imported).run()
    wanted: Any = step(*args)
    for mine, theirs in zip(execute(imported, p, args), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_sum_of_one_row_is_made_in_front_of_the_norm_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a matrix it has one row of the 128 that a unit multiplies."""
    shapes = ((2, 3, 32, 32), (2, 3, 32), (2, 3, 32), (2, 3, 32), (3, 32), (3, 32))
    norm = [c for c in (r.cascade for r in found(states.time_mixed, *shapes).parts) if "rsqrt" in str(c)]
    assert norm and all(t.shape != shapes[0] for c in norm for t in c.inputs)
    monkeypatch.setattr(per_step, "of_one_row", lambda d, i: False)
    norm = [c for c in (r.cascade for r in found(states.time_mixed, *shapes).parts) if "rsqrt" in str(c)]
    assert any(t.shape == shapes[0] for c in norm for t in c.inputs)


def test_rows_that_share_an_operand_are_a_matrix() -> None:
    """Of 32 queries the scores are made on the way, as ever; of one, written out, in front."""
    def scored(k: Tensor, q: Tensor) -> Tensor:
        return ((q[:, :, None] * k[:, None]).sum(-1)).softmax(-1)

    def kernels(queries: int) -> int:
        return len(found(scored, (4, 100, 32), (4, queries, 32)).parts)

    assert kernels(32) == 1 and kernels(1) == 2


def test_attention_is_not_written_and_read_again() -> None:
    """Its rows share keys and values: the weighted sum is a matrix product, whose row no block writes beside it."""
    def f(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = (q @ k.mT).softmax(-1)
        return p @ v, p

    p = found(f, *(torch.randn(2, 64, 32, dtype=torch.float16),) * 3)
    assert p.regions and all(len(r.cascade.outputs) == 1 for r in p.regions)


def test_a_library_reads_a_matrix_the_other_way_round_for_nothing() -> None:
    """Written across its lines, a rounded weight took 83.7 us, along them 17.6 (4096 x 4096 in bfloat16, H200)."""
    def f(x: Tensor, w: Tensor) -> Tensor:
        t = w.abs().amax(-1, keepdim=True) / 127
        return F.linear(x, (w / t).round() * t)

    p = found(f, torch.randn(2048, 512), torch.randn(1024, 512))
    (rounded,) = [r.cascade for r in p.regions if "round(" in str(r.cascade)]
    written = rounded.stmt(rounded.outputs[0])
    assert written.axes[-1] == rounded.raxis


def test_small_tensors_do_not_crowd_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    large = ((64, 2048, 16), (64, 2048), (64, 2048), (2048, 16), (64, 16), (64, 16), (64, 2048))
    assert len(of_the_state(found(states.scanned, *(torch.empty(s, device="meta") for s in large)), large[0])) == 1
    monkeypatch.setattr(reads, "SMALL", 1 << 40)
    monkeypatch.setattr(reads, "MAX_TENSORS", 6)
    assert len(of_the_state(found(states.scanned, *(torch.empty(s, device="meta") for s in large)), large[0])) > 1


def made_again(q: Tensor, k: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """A map of a cascade's result that the reduction behind it makes for itself."""
    z = ((q @ k.mT).softmax(-1) @ k).abs().log1p()
    return z, (z * m).sum(-1) / m.sum(-1), (z * 0.5).exp()


def gated(x: Tensor, w: Tensor) -> Tensor:
    h = F.rms_norm(x, (64,))
    return torch.sigmoid(h @ w) * h


@pytest.mark.parametrize(("model", "shapes"), [
    (made_again, ((2, 17, 64), (2, 17, 64), (17, 64))), (gated, ((24, 64), (64, 1))),
    *((f, STEPS[f]) for f in (states.exponential_gates, states.scanned))], ids=lambda x: getattr(x, "__name__", ""))
def test_nothing_is_written_for_nobody_and_nothing_left_to_torch_that_a_kernel_reads(
        model: Callable[..., object], shapes: tuple[tuple[int, ...], ...]) -> None:
    partitioner = Partitioner(import_model(model, tuple(torch.randn(s) for s in shapes)))
    p, graph = partitioner.run(), partitioner.graph
    read = {v for r in p.parts for v in r.inputs.values()}
    written = {v for r in p.parts for v in r.outputs.values()}
    live = graph.live(read, written)
    needed = read | {n.var for n in graph.nodes if n.escapes} | {a.var for u in graph.units if u.var in live for a in u.args}
    assert written <= needed, written - needed
    assert not {op.removeprefix("relax.") for op in p.kept} - {"reshape", "expand_dims", "permute_dims", "matmul"}


@pytest.mark.parametrize("channels", [32, 512])
def test_a_masked_sum_of_channels_is_a_row_for_each(channels: int) -> None:
    """All channels together no block holds: four kernels, 60.6 us of 64 x 1024 x 256 halves (H200), where one takes 18.2. A row
    longer than a block's threads may have is read twice by one kernel."""
    args = (torch.empty(64, 1024, channels, dtype=torch.float16), torch.ones(64, 1024, dtype=torch.bool))
    (region,) = found(states.weighted_by_time, *args).regions
    assert select(region.fused, target("sm_90a")) == ("resident", 1)
    c = region.cascade
    longer = replace(c, axes=tuple(replace(a, extent=ALIKE + 1) if a.name == c.raxis else a for a in c.axes))
    assert [untuned(replace(region.fused, cascade=x), "sm_90a")[0] for x in (c, longer)] == ["resident", "single"]


def test_a_projection_of_one_token_is_no_part_of_its_norm() -> None:
    """Joined to the norm whose row is written it was worth nothing, and was left to torch with it."""
    def f(x: Tensor, g: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.rms_norm(x, (4096,), g)
        return F.linear(h, k), F.linear(h, v), h

    half = torch.float16
    p = found(f, *(torch.empty(s, dtype=half, device="meta") for s in ((1, 1, 4096), (4096,), (1024, 4096), (1024, 4096))))
    assert len(p.regions) == 3 and not {"relax.matmul"} & set(p.kept)
