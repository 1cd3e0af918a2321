"""Reductions that are no cascade, with the maps around them: what is one kernel, what stays a call of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from redfuser import pipeline
from redfuser.acrf.state import Fused, NotFusable
from redfuser.frontend import import_model
from redfuser.partition import few as sums
from redfuser.partition.search import Partitioner
from tests.partition.helpers import execute, flat, partitioned

X, Y = torch.randn(12, 40), torch.randn(12, 40)


@pytest.mark.parametrize("of", [
    lambda x, y: F.mse_loss(x, y), lambda x, y: (x - y).abs().mean(-1), lambda x, y: F.smooth_l1_loss(x, y),
    lambda x, y: torch.relu((x * y).sum(-1) * 2 + 1), lambda x, y: (x + y).argmax(-1), lambda x, y: (x - y).abs().amax(),
    lambda x, y: ((h := x + y), h.sum(-1)), lambda x, y: ((x > y) & (x > 0)).any(-1), lambda x, y: (x * y[0]).amin(-1),
    lambda x, y: (x.argmax(-1), x.amin(-1), x.mean(-1)), lambda x, y: (x.half().argmax(-1), x.half().mean(-1) * 2)],
    ids=["mse", "l1", "huber", "behind", "place", "all", "kept", "any", "vector", "several", "widened"])
def test_a_reduction_and_its_maps_are_one_kernel(of: Callable[..., Any]) -> None:
    """It is no cascade: the report counts it with the maps, and nothing of it is left to torch."""
    imported, p = partitioned(of, (X, Y))
    assert not p.regions and len(p.maps) == 1 and not p.unmapped and not p.kept
    for mine, theirs in zip(execute(imported, p, (X, Y)), flat(of(X, Y)), strict=True):
        close = 1e-5 if mine.dtype == torch.float32 else 1e-3
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close / 10)


def test_what_torch_does_as_well_stays_its_call() -> None:
    """A reduction by itself, or the casts and the quotient that are part of its call; and columns, whose neighbours lie apart."""
    half = X.half()
    for of, x in ((lambda x: x.sum(-1), X), (lambda x: x.mean(-1), half), (lambda x: x.argmax(-1), X), (lambda x: x.max(-1), X),
                  (lambda x: (x.sum(-1), x.amax(0)), X), (lambda x: (x.sum(0), x.amax(0)), X)):
        assert not partitioned(of, (x,))[1].parts
    p = partitioned(lambda x, y: (x * y).sum(0), (X, Y))[1]
    assert not any("sum[" in str(r.cascade) for r in p.parts)
    for number in (lambda x: (x * 2 + torch.arange(40)).sum(), lambda x: (x.expand(40) * 2).amax()):
        imported, p = partitioned(number, (torch.tensor(1.5),))  # what it reads has no axis at all
        torch.testing.assert_close(execute(imported, p, (torch.tensor(1.5),))[0], number(torch.tensor(1.5)))
    assert not Partitioner(import_model(lambda x, y: F.mse_loss(x, y), (X, Y)), arch="cpu", maps=False).run().parts


def test_a_norm_that_the_importer_takes_apart_is_one_reduction() -> None:
    """Torch would run its squares, their sum and its root one by one."""
    imported, p = partitioned(lambda x: torch.linalg.vector_norm(x, dim=-1), (X,))
    assert len(p.maps) == 1 and not p.kept
    torch.testing.assert_close(execute(imported, p, (X,))[0], torch.linalg.vector_norm(X, dim=-1))


def test_a_reduction_leaves_products_and_dear_maps_that_others_read() -> None:
    """ConvNeXt V2's norm of responses: its sum joined the product in front, or took GELU with it, and was given up; its squares
    were then written in float32 beside GELU's results."""
    def responses(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.gelu(F.linear(x, w))
        return h, torch.linalg.vector_norm(h, dim=1)

    def dear(fused: Fused) -> float:
        return float("erf" in str(fused))

    args = torch.randn(2, 24, 40).half(), torch.randn(48, 40).half()
    for priced, with_gelu in ((dear, False), (lambda fused: 0.0, True)):
        found = Partitioner(import_model(responses, args), priced=priced).run()
        (text,) = (str(r.cascade) for r in found.maps if "sum[" in str(r.cascade))
        assert ("erf(" in text) is with_gelu and text.count("sum[") == 1 and "relax.sum" not in found.kept


def test_few_terms_that_lie_across_memory_are_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """What some experts made of a token is weighed and added where it is read, beside a norm of it too. Nine are a reduction."""
    monkeypatch.setattr(sums, "LARGE", 1)
    w = torch.rand(96)

    def tokens(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, few: int = 8) -> torch.Tensor:
        return (x * w[:, None]).view(-1, few, 40).sum(1) + y

    def normed(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = tokens(x, w, y)
        return h, F.rms_norm(h, (40,))

    def three(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tokens(x[:36], w[:36], y, 3)

    for of, found in ((tokens, "map.0"), (normed, "norm.0"), (three, "map.0")):
        args = (torch.randn(96, 40), w, Y)
        imported, p = partitioned(of, args)
        assert [r.name for r in p.parts] == [found] and "sum[c]" not in str(p.parts[0].cascade) and not p.kept
        for mine, theirs in zip(execute(imported, p, args), flat(of(*args)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    nine = partitioned(lambda x, w, y: tokens(x, w, y, 9), (torch.randn(108, 40), torch.rand(108), Y))[1]
    assert nine.kept.get("relax.sum") == 1


def test_neighbours_that_would_be_computed_twice_are_written_before() -> None:
    def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x) * y
        return (h[:, 1:] + h[:, :-1]).softmax(-1)

    def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = (torch.tanh(x) * y).view(12, 20, 2)
        return (h[..., 0] + h[..., 1]).softmax(-1)

    for of, alone in ((pairs, False), (halves, True)):
        imported, p = partitioned(of, (X, Y))
        (softmax,) = p.regions
        assert ("tanh" in str(softmax.cascade)) is alone
        torch.testing.assert_close(execute(imported, p, (X, Y))[0], of(X, Y), rtol=1e-5, atol=1e-5)


def test_two_of_one_row_do_not_take_a_cascade_apart() -> None:
    """A norm's own sums are the norm's, whatever else is summed beside it."""
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.layer_norm(x + y, (40,)), (x * y).sum(-1)

    imported, p = partitioned(both, (X, Y))
    assert [r.name for r in p.regions] == ["norm.0"] and [r.name for r in p.maps] == ["statistics.0"]
    for mine, theirs in zip(execute(imported, p, (X, Y)), both(X, Y), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_refused_one_is_left_to_torch() -> None:
    """What no kernel could be made of is asked for once."""
    search = Partitioner(import_model(lambda x, y: F.mse_loss(x, y), (X, Y)), arch="sm_90a")
    assert [r.name for r in search.run().maps] == ["statistics.0"]
    assert search.give_up({"statistics.0": NotFusable("RF410", "", "a configuration fits", "none does", "")})
    p = search.run()
    assert len(p.unmapped) == 1 and not any("sum[" in str(r.cascade) for r in p.parts)


def test_what_is_left_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the graph is grown again."""
    search = Partitioner(import_model(lambda x, y: F.mse_loss(x, y), (X, Y)), arch="sm_90a")
    monkeypatch.setattr(search.forms, "fuse", lambda cascade: NotFusable("RF201", "", "it separates", "it does not", ""))
    search.run()
    assert [r.reason.code for r in search.run().unmapped] == ["RF201"]


@pytest.mark.parametrize("of", [
    lambda x: x.softmax(1), lambda x: (x.softmax(1) * x).sum(1), lambda x: F.normalize(x.exp(), dim=1) * x.exp().sum(1, True),
    lambda x: (x - x.mean(1, True)) / x.var(1, keepdim=True)], ids=["softmax", "weighed", "two norms", "standardised"])
def test_a_sum_of_few_that_is_part_of_more_stays_one(of: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the row again is its kernel too: a softmax over eight planes was torch's, its sum having become a map."""
    x = torch.randn(40, 8, 64)
    monkeypatch.setattr(sums, "LARGE", x.numel())
    imported, p = partitioned(of, (x,))
    assert p.regions and not p.refusals, p
    for mine, theirs in zip(execute(imported, p, (x,)), flat(of(x)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_distances_that_several_read_are_computed_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest of either side: no kernel writes one distance for each pair."""
    def near(a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (a[:, :, None] - c[:, None]).pow(2).sum(-1)

    def both(a: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        d = near(a, c)
        return d.amin(2), d.amin(1)

    p = pipeline.run(both, (torch.randn(4, 2048, 3), torch.randn(4, 2048, 3)), arch="sm_90a", build=False, verify="0").partition
    assert len(p.parts) == 2 and not p.kept and not any("sum[" in str(r.cascade) for r in p.parts)
    args = (torch.randn(2, 70, 3), torch.randn(2, 50, 3))
    monkeypatch.setattr(sums, "LARGE", 2 * 70 * 50 * 3)
    imported, p = partitioned(both, args)
    for mine, theirs in zip(execute(imported, p, args), both(*args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    imported, once = partitioned(lambda a, c: torch.softmax(-near(a, c), -1) @ c, args)
    (region,) = once.regions
    assert "sum[c]" not in str(region.cascade)
    (mine,) = execute(imported, once, args)
    torch.testing.assert_close(mine, torch.softmax(-near(*args), -1) @ args[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of", [
    lambda d: torch.exp(-d).sum(-1), lambda d: (d < 0.04).float().sum(-1), lambda d: (d - 1).relu().mean(-1),
    lambda d: torch.where(d < 1, d, 0.0).sum(1), lambda d: torch.sign(d - 1).sum(-1)])
def test_distances_that_are_reduced_are_computed_in_the_row(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Densities, counts of neighbours: torch.compile writes no distance for each pair, and neither do we (30.8 us for the
    distances alone, modelled, 13.9 for all)."""
    def program(x: torch.Tensor) -> torch.Tensor:
        return of((x[:, None] - x[None]).square().sum(-1))

    x = torch.randn(1024, 2)
    done = pipeline.run(program, (x,), arch="sm_90a", build=False, verify="0")
    (part,) = done.partition.parts
    assert not done.partition.kept and "sum[l]" in (text := str(part.fused.cascade)) and text.count("sum[") == 1
    (mine,) = execute(done.imported, done.partition, (x,))
    torch.testing.assert_close(mine, program(x), rtol=1e-5, atol=1e-5)


def test_an_element_of_the_row_that_data_choose_is_computed_anew() -> None:
    """A margin: what is far more than a scale is computed of the row and of the one element, and written for neither."""
    def margin(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        z = torch.where(F.one_hot(t, 40).bool(), torch.cos(torch.acos(x.clamp(-1, 1) * .99) + .5), x) * 64
        return z.log_softmax(-1).gather(1, t[:, None])

    args = (torch.randn(24, 40) * .5, torch.randint(0, 40, (24,)))
    imported, p = partitioned(margin, args)
    assert len(p.parts) == 1 and not p.kept
    text = str(p.parts[0].cascade)
    assert len(text) < 2500, "what is shared is said once"
    (mine,), theirs = execute(imported, p, args), margin(*args)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
