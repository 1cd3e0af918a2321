"""Elements at places that data say: whoever reads them takes them from memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from redfuser.acrf.expr import Const, Expr, Index, Load, Op
from redfuser.frontend import import_model
from redfuser.partition import Partition
from redfuser.partition.reads import for_one
from redfuser.partition.search import Partitioner
from tests.partition.helpers import execute, flat
from workloads.correctness import taken
from workloads.correctness.program import draw

PROGRAMS = {p.what: p for p in taken.programs() if p.what.startswith("f32")}
IN_PARTS = {"closest": 2}
"""Kernels, where they are not one: a cloud's distances are computed once for all channels."""


def found(of: Any, args: tuple[torch.Tensor, ...]) -> tuple[Any, Partition]:
    imported = import_model(of, args)
    return imported, Partitioner(imported, arch="sm_90a", priced=lambda _: 0.0).run()


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_table_is_copied(name: str) -> None:
    p = PROGRAMS[name]
    args = draw(p, "normal")
    imported, got = found(p.fn, args)
    assert not {op.removeprefix("relax.") for op in got.kept} & {"take", "index_tensor", "gather_elements", "where"}, got.kept
    assert len(got.parts) == IN_PARTS.get(p.fn.__name__, 1)
    for mine, theirs in zip(execute(imported, got, args), flat(p.fn(*args)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


IDS, W, G = torch.randint(0, 50, (3, 70)), torch.randn(50, 40), torch.randn(40)


def test_a_table_that_is_computed_is_computed_once() -> None:
    def of(ids: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(F.embedding(ids, torch.tanh(w)) * 2, (40,), g)

    imported, p = found(of, (IDS, W, G))
    assert not any("tanh" in str(r.cascade) and "sum[" in str(r.cascade) for r in p.parts)
    torch.testing.assert_close(execute(imported, p, (IDS, W, G))[0], of(IDS, W, G), rtol=1e-5, atol=1e-5)


def test_a_map_is_not_read_where_data_say() -> None:
    """The rows that are taken of it, and itself: each is a kernel's, and the second reads what the first has written."""
    def of(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x) * x
        return y, torch.sigmoid(y[at]) + 1

    args = (torch.randn(30, 20), torch.randint(0, 30, (30,)))
    imported, p = found(of, args)
    assert len(p.parts) == 2 and sum("tanh" in str(r.cascade) for r in p.parts) == 1
    for mine, theirs in zip(execute(imported, p, args), of(*args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_the_label_of_a_row_stays_the_rows() -> None:
    """The mean of what is taken comes first on the way back from the result; the softmax keeps its label all the same."""
    x, t = torch.randn(12, 90), torch.randint(0, 90, (12,))
    _, p = found(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (x, t))
    assert not p.refusals and sum("max[" in str(r.cascade) for r in p.parts) == 1


@pytest.mark.parametrize("of", [
    lambda x, at: x[at] * 2 + 1, lambda x, at: F.embedding(at, x) * 2 + 1,
    lambda x, at: torch.gather(x, 0, at[:, None]) * 2 + 1, lambda x, at: x[at, at] * 2 + 1])
def test_a_place_beyond_the_table_reads_inside(of: Any) -> None:
    """torch ends the process there; a kernel that read elsewhere would say nothing."""
    x, at = torch.randn(9, 9), torch.tensor([0, 3, 8, 5])
    _, p = found(of, (x, at))
    (region,) = p.parts
    text = str(region.cascade)
    assert "min(max(" in text and ", 0), 8)" in text


@pytest.mark.parametrize(("of", "taken_"), [
    (lambda x, y, at: x[at], True), (lambda x, y, at: torch.stack([x, y], -1), True),
    (lambda x, y, at: torch.cat([x.mT, y.mT], 1), True), (lambda x, y, at: torch.cat([x[:, :33], y], 1), True),
    (lambda x, y, at: torch.cat([x, y], 1), False), (lambda x, y, at: torch.cat([x[3:], y[:5]]), False)],
    ids=["rows", "pairs", "turned", "in pieces", "columns", "stretches"])
def test_what_torch_does_slowly_is_a_kernel_by_itself(of: Any, taken_: bool) -> None:
    """Rows picked one by one, short runs, tensors in pieces: up to four times a copy's time. Whole runs are torch's."""
    args = (torch.randn(40, 40), torch.randn(40, 40), torch.randint(0, 40, (25,)))
    imported, p = found(of, args)
    assert len(p.parts) == taken_
    torch.testing.assert_close(execute(imported, p, args)[0], of(*args))


def columns(at: torch.Tensor, tables: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [F.embedding(at[:, i], w) for i, w in enumerate(tables)]


@pytest.mark.parametrize(("of", "one"), [
    (lambda at, *tables: torch.stack(columns(at, tables), 1), True),
    (lambda at, *tables: torch.cat([*columns(at, tables), tables[0][:30]], -1).tanh(), True),
    (lambda at, *tables: sum(columns(at, tables)), False)])
def test_tables_whose_elements_are_joined_share_a_kernel(of: Any, one: bool) -> None:
    """A recommender's have one for each column of the places. An element is of one table; of a sum, of them all, which are too
    many for a kernel."""
    args = (torch.randint(0, 50, (30, 12)), *(torch.randn(50, 40) for _ in range(12)))
    imported, p = found(of, args)
    assert (len(p.parts) == 1) is one and not p.unmapped
    torch.testing.assert_close(execute(imported, p, args)[0], of(*args), rtol=1e-5, atol=1e-5)


def test_what_one_element_reads() -> None:
    """Of a choice by place, the branch that reads more; by data, both and what decides; and however deep the expression is."""
    a, b, c, m = (Load(n, (Index("i"),), "f32") for n in "abcm")
    here, data = Op("lt", (Index("i"), Const(4, "i64")), "bool"), Op("lt", (m, Const(0.0, "f32")), "bool")
    both = Op("add", (b, c), "f32")
    assert for_one(Op("select", (here, a, both), "f32")) == {"b", "c"}
    assert for_one(Op("select", (data, a, both), "f32")) == {"a", "b", "c", "m"}
    assert for_one(Load("a", (Load("b", (Index("i"),), "i64"),), "f32")) == {"a", "b"}
    deep: Expr = a
    for _ in range(3000):
        deep = Op("add", (deep, b), "f32")
    assert for_one(deep) == {"a", "b"}


def test_a_table_for_each_column_is_one_kernel() -> None:
    """Columns of the places are slices, as steps of a loop that was unrolled are."""
    args = (torch.randint(0, 50, (30, 12)), *(torch.randn(50, 40) for _ in range(12)))
    imported, p = found(lambda at, *tables: tuple(columns(at, tables)), args)
    assert len({r.key for r in p.parts}) < len(p.parts) and not p.unmapped
    for mine, theirs in zip(execute(imported, p, args), columns(args[0], args[1:]), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_table_of_no_rows_is_torchs() -> None:
    """The nearest of its elements is none: torch refuses the call."""
    _, p = found(lambda x, at: torch.tanh(F.embedding(at, x) * 2), (torch.randn(0, 4), torch.randint(0, 1, (5,))))
    assert "relax.take" in p.kept and not any("min(max(" in str(r.cascade) for r in p.parts)
