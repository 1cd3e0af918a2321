"""Convolutions in channels-last: what is computed in which order, that nothing is copied that need not be, and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import redfuser
from redfuser import outer
from redfuser.frontend import Imported, channels_last, import_model
from redfuser.partition import partition
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import of_imported
from tests.outer_graphs import rehearsal
from tests.partition.helpers import execute

LAYS = "torch.ops.aten.contiguous.default("


class Bottleneck(torch.nn.Module):
    """1x1, 3x3, 1x1, each with a batch norm, and another 1x1 beside them."""

    def __init__(self, n: int = 8, m: int = 16) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in (
            (n, n, 1), (n, n, 3), (n, m, 1), (n, m, 1)))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(c.out_channels) for c in self.convs)  # type: ignore[arg-type]
        for b in self.norms:
            torch.nn.init.uniform_(b.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            torch.nn.init.normal_(b.running_mean)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for conv, norm in list(zip(self.convs, self.norms, strict=True))[:2]:
            y = F.relu(norm(conv(y)))
        y = F.relu(self.norms[2](self.convs[2](y)) + self.norms[3](self.convs[3](x)))
        return F.avg_pool2d(y, 2, divisor_override=4).mean((2, 3))  # which is no map: an opaque call


class Decoder(torch.nn.Module):
    """Group norm, SiLU and convolution twice with a residual, attention-like mixing of pixels, upsampling and a concatenation."""

    def __init__(self, n: int = 16, groups: int = 4) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.GroupNorm(groups, n) for _ in range(3))
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(n, n, 3, padding=1) for _ in range(2))
        self.mix, self.last = torch.nn.Linear(n, n), torch.nn.Conv2d(2 * n, 3, 3, padding=1)
        for g in self.norms:
            torch.nn.init.normal_(g.weight)  # type: ignore[arg-type]
            torch.nn.init.normal_(g.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.convs[0](F.silu(self.norms[0](x))) + t[:, :, None, None]
        x = x + self.convs[1](F.silu(self.norms[1](h)))
        y = self.mix(self.norms[2](x).flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
        return self.last(torch.cat([F.interpolate(x + y, scale_factor=2.0), F.interpolate(h, scale_factor=2.0)], 1))


class Depthwise(torch.nn.Module):
    """A convolution of each channel, a norm of channels and two linear layers beside a residual; then one of groups."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.into, self.own = torch.nn.Conv2d(n, n, 1), torch.nn.Conv2d(n, n, 7, padding=3, groups=n)
        self.norm, self.up, self.down = torch.nn.LayerNorm(n), torch.nn.Linear(n, 4 * n), torch.nn.Linear(4 * n, n)
        self.groups = torch.nn.Conv2d(n, 2 * n, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        y = self.down(F.gelu(self.up(self.norm(self.own(x).permute(0, 2, 3, 1)))))
        return F.relu(self.groups(x + y.permute(0, 3, 1, 2))).mean((2, 3))


class Between(torch.nn.Module):
    """A convolution of each channel that no other meets, between linear layers of tokens; then one that shortens tokens."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(n, 2 * n), torch.nn.Linear(2 * n, n)
        self.own, self.shorter = torch.nn.Conv2d(2 * n, 2 * n, 3, padding=1, groups=2 * n), torch.nn.Conv2d(n, n, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.own(self.up(x).transpose(1, 2).unflatten(2, (6, 4))).flatten(2).transpose(1, 2)
        y = self.down(F.gelu(y) * 0.5) + x
        y = self.shorter(y.permute(0, 2, 1).reshape(-1, 8, 6, 4))
        return F.gelu(y.reshape(-1, 8, 6).permute(0, 2, 1) - 1)


class Lines(torch.nn.Module):
    """Of one dimension: two that shorten a wave, and a conformer's behind a linear layer: one of points and its gate, one of
    each channel and its norm, one of points."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.short = torch.nn.ModuleList([torch.nn.Conv1d(1, n, 5, stride=3), torch.nn.Conv1d(n, n, 3, stride=2, dilation=2)])
        self.linear, self.wide = torch.nn.Linear(n, n), torch.nn.Conv1d(n, 2 * n, 1)
        self.own, self.norm = torch.nn.Conv1d(n, n, 7, padding=3, groups=n), torch.nn.BatchNorm1d(n)
        self.out = torch.nn.Conv1d(n, n, 1, bias=False)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.short:
            x = F.gelu(conv(x))
        x = self.linear(x.transpose(1, 2))
        y = F.glu(self.wide(x.transpose(1, 2)), 1)
        return x + self.out(F.silu(self.norm(self.own(y)))).transpose(1, 2)


def laid(model: torch.nn.Module, args: Any) -> tuple[Imported, Any, str]:
    """Imported with channels last, partitioned as for a GPU, and the outer graph's text."""
    imported = channels_last(import_model(model.eval(), args))
    found = partition(imported)
    graph = outer.emit(imported, found.parts, {r.name: r.name.replace(".", "_") for r in found.parts})
    return imported, found, graph.source


def half(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=made).half() for s in shapes)


@pytest.mark.parametrize("model, shapes, copies, convolutions, weights", [
    (Bottleneck, [(2, 8, 6, 4)], 2, 4, 4), (Decoder, [(2, 16, 6, 4), (2, 16)], 2, 3, 3), (Depthwise, [(2, 8, 6, 4)], 1, 3, 2),
    (Between, [(2, 24, 8)], 0, 2, 1), (Lines, [(2, 1, 90)], 0, 5, 3)])
def test_values_are_the_programs(model: Any, shapes: Any, copies: int, convolutions: int, weights: int) -> None:
    """A weight of each channel's own lies alike in both orders."""
    torch.manual_seed(1)
    m, args = model().half().eval(), half(*shapes)
    imported, found, text = laid(m, args)
    rehearsal(outer.emit(imported), args)
    assert len(imported.laid) == weights and f"{convolutions} convolutions" in imported.notes[-1]
    assert not found.refusals and {r.reason.code for r in found.unmapped} <= {"RF305"}  # nobody models a mean of channels last here
    with torch.no_grad():
        eager = m(*args)
        exact = m.double()(*(a.double() for a in args))
    for got in (execute(imported, found, args)[0], outer.emit(imported).function()(*args)[0]):
        assert got.shape == exact.shape and got.dtype == eager.dtype
        assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3 * exact.abs().max()
    assert text.count(LAYS) == copies, "the input, what an opaque call gives, a result: where it lies so already, nothing is done"
    assert got.is_contiguous() and eager.is_contiguous()
    assert ".permute(" not in text.replace(".permute(0, 2, 3, 1)", "") or text.count(".permute(0, 3, 1, 2)") <= copies


def test_kernels_lie_between_convolutions() -> None:
    """No torch operation but convolutions, the pool and the total: maps are kernels, whose rows are channels."""
    _, found, text = laid(Bottleneck().half(), half((2, 8, 6, 4)))
    lines = [line.split(" = ", 1)[1] for line in text.splitlines() if " = " in line]
    rest = [x for x in lines if not x.startswith(("F.conv2d(", "map_", LAYS, "torch.ops.aten.avg_pool2d"))]
    assert all(x.endswith((".permute(0, 2, 3, 1)", ".permute(0, 3, 1, 2)", "[0]")) or "mean" in x for x in rest), rest
    assert {t.shape[-1] for r in found.maps for t in r.cascade.inputs} == {8, 16}


def test_lines_are_turned_neither_for_linear_layers_nor_for_gates() -> None:
    """A library is given four dimensions, of which it takes either order; that of each channel is a map."""
    _, found, text = laid(Lines().half(), half((2, 1, 90)))
    assert text.count("F.conv2d(") == 4 and "F.conv1d" not in text and "transpose" not in text and ".permute(" not in text
    assert {t.shape[-1] for r in found.maps for t in r.cascade.inputs} == {7, 8, 16}, "rows of channels, and the taps of each"
    rows = channels_last(import_model(Lines().eval(), (torch.randn(2, 1, 90),)))
    assert not rows.laid and "F.conv1d(" in outer.emit(rows).source, "in float32 nothing was measured"


def test_a_model_that_lies_so_is_not_copied() -> None:
    """Nor are its weights laid out anew: torch has nothing to do."""
    torch.manual_seed(1)
    m = Bottleneck().half().eval().to(memory_format=torch.channels_last)
    (x,) = half((2, 8, 6, 4))
    imported, _, _ = laid(m, (x,))
    moved = x.to(memory_format=torch.channels_last)
    graph = outer.emit(imported)
    seen: list[bool] = []

    def lie(t: torch.Tensor) -> torch.Tensor:
        same = t.contiguous()
        seen.append(same.data_ptr() == t.data_ptr())
        return same

    scope: dict[str, Any] = {"torch": torch, "F": F, "device": torch.device("cpu"), "lie": lie, **graph.constants}
    exec(graph.source.replace(LAYS, "lie("), scope)
    with torch.no_grad():
        got = scope["forward"](moved)[0]
    assert torch.equal(got, graph.function()(x)[0]) and all(seen) and len(seen) == 2
    weights = [t for t in graph.constants.values() if t.dim() == 4]
    assert weights and all(t.contiguous(memory_format=torch.channels_last).data_ptr() == t.data_ptr() for t in weights)


@pytest.mark.parametrize("last", [False, True])
def test_a_result_lies_as_eagers(last: bool) -> None:
    """The caller may view it; of a model in channels-last it is in channels-last."""
    torch.manual_seed(1)
    m = torch.nn.Sequential(Alone(), Alone()).half().eval()
    m, (x,) = m.to(memory_format=torch.channels_last) if last else m, half((2, 8, 6, 4))
    x = x.to(memory_format=torch.channels_last) if last else x
    imported, _, _ = laid(m, (x,))
    with torch.no_grad():
        got, eager = outer.emit(imported).function()(x)[0], m(x)
    assert got.stride() == eager.stride() and torch.allclose(got, eager, rtol=0.01, atol=0.01)


class Alone(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(x))


@pytest.mark.parametrize("model, dtype", [(Alone(), torch.float16), (torch.nn.Sequential(Alone(), Alone()), torch.float32)])
def test_where_it_does_not_pay_nothing_changes(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """One by itself; few channels in single precision."""
    imported = import_model(model.eval().to(dtype), (torch.randn(2, 8, 6, 4, dtype=dtype),))
    assert channels_last(imported) is imported


class Wide(torch.nn.Module):
    """Convolutions in float32, (made, summed, window, stride, groups) each."""

    def __init__(self, *kinds: tuple[int, int, int, int, int]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(i, o, k, s, k // 2, groups=g) for o, i, k, s, g in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = F.relu(conv(x)) + 1
        return x.mean((2, 3))


FULL, FIRST, DOWN, EACH = (32, 32, 3, 1, 1), (32, 3, 3, 1, 1), (64, 32, 1, 2, 1), (64, 64, 3, 1, 64)


@pytest.mark.parametrize("kinds, convolutions", [
    ([FIRST, FULL, FULL, FULL], 3), ([FULL, FULL, FULL, DOWN, EACH, EACH], 6), ([(32, 32, 1, 2, 1), FULL, FULL, FULL], 3),
    ([FULL, FULL], 2), ([FULL, (32, 32, 1, 1, 1)], 0), ([FULL, FULL, FULL, (32, 32, 7, 1, 1)], 3), ([FULL] * 3 + [(32, 32, 3, 1, 2)], 3)])
def test_single_precision_where_it_is_no_worse(kinds: Any, convolutions: int) -> None:
    """Few channels, a narrow window before any other and groups stay row by row, and are given rows; so does what is not worth the
    change of the input's layout."""
    torch.manual_seed(1)
    m = Wide(*kinds).eval()
    x = torch.randn(2, kinds[0][1], 8, 8)
    before = import_model(m, (x,))
    imported = channels_last(before)
    if not convolutions:
        assert imported is before
        return
    assert imported.notes[-1].startswith(f"{convolutions} convolutions")
    text = outer.emit(imported).source
    lines = [line for line in text.splitlines() if "F.conv2d(" in line]
    assert sum("movedim" in line for line in lines) == convolutions
    for line in lines:
        if "movedim" not in line and "(x," not in line:
            name = line.split("F.conv2d(")[1].split(",")[0]
            assert any(made.strip().startswith(f"{name} = {LAYS}") for made in text.splitlines()), "rows, or a library takes TF32"
    torch.testing.assert_close(outer.emit(imported).function()(x)[0], m(x), rtol=1e-4, atol=1e-5)


def test_targets() -> None:
    """CUDA's alone: the CPU's library lays nothing out, AMD's is not measured."""
    m, x = torch.nn.Sequential(Alone(), Alone()).half().eval(), half((1, 8, 6, 4))
    notes = {t: [n.text for n in redfuser.explain(m, x, target=t).notes] for t in ("sm_90a", "cpu", "gfx942")}
    assert {t for t, said in notes.items() if any("channels last" in s for s in said)} == {"sm_90a"}


def compiled(m: torch.nn.Module, args: Any) -> tuple[CompiledModel, Imported]:
    """In this process and without kernels."""
    imported = channels_last(import_model(m.eval(), args))
    graph = outer.emit(imported)
    rehearsal(graph, args)
    return CompiledModel(Graph(graph.source, tuple(graph.inputs), 1), graph.constants, {}, of_imported(imported, 1)), imported


def test_weights_stay_the_models_own(tmp_path: Path) -> None:
    """Changes in place are seen, since a shared weight is laid out in every call; a file's are laid out when it is loaded, and
    theirs are seen too."""
    torch.manual_seed(1)
    m, args = Bottleneck().half().eval(), half((2, 8, 6, 4))
    model, imported = compiled(m, args)
    assert not any(t.is_contiguous(memory_format=torch.channels_last) for n, t in model.named_buffers() if "c_p_convs_1" in n)
    model.save(tmp_path / "m.rf")
    loaded = redfuser.load(tmp_path / "m.rf")
    lying = {n: t for n, t in loaded.named_buffers() if n.removeprefix("c_") in imported.laid}
    assert len(lying) == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in lying.values())
    with torch.no_grad():
        before = m(*args)
        torch.testing.assert_close(loaded(*args), before, rtol=0.01, atol=0.01)
        m.convs[1].weight.mul_(2)  # type: ignore[operator]
        next(t for n, t in lying.items() if "convs_1" in n).mul_(2)
        assert (m(*args) - before).abs().max() > 0.05
        for got in (model(*args), loaded(*args)):
            torch.testing.assert_close(got, m(*args), rtol=0.01, atol=0.01)


def test_an_input_that_lies_so_reaches_the_graph_as_it_is() -> None:
    m, (x,) = Bottleneck().half().eval(), half((2, 8, 6, 4))
    model, _ = compiled(m, (x,))
    moved, given = x.to(memory_format=torch.channels_last), []
    with torch.no_grad():
        want = model(x)
        bound = model._eager
        assert bound is not None
        object.__setattr__(bound, "run", lambda device, *t: given.append(t[0]) or (want,))  # type: ignore[func-returns-value]
        model(moved)
        model(x.transpose(2, 3).contiguous().transpose(2, 3))
    assert given[0] is moved and given[1].is_contiguous()


def test_a_weight_that_a_kernel_reads_too_stays_row_by_row() -> None:
    """A demodulated convolution's, whose squares are summed: the kernel was built for rows."""
    text = "def forward(x):\n    t = k0(w)\n    y = F.conv2d(x, w.contiguous(memory_format=torch.channels_last))\n    return (y * t,)\n"
    weight = torch.randn(4, 3, 3, 3)
    assert Graph(text, ("x",), 1).laid("w", weight) is weight
    alone = Graph(text.replace("k0(w)", "k0(x)"), ("x",), 1)
    assert alone.laid("w", weight).is_contiguous(memory_format=torch.channels_last) and alone.laid("x", weight) is weight
