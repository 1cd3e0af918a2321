"""A query that may look at nothing: SDPA gives 0 there, and so do we, in every realisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import redfuser
from redfuser import frontend, numerics
from redfuser.partition import partition
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from redfuser.tensorize.ir import interpret


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@pytest.fixture
def args() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 64, generator=g).half() for n in (40, 75, 75))
    keep = torch.rand(1, 1, 40, 75, generator=g) > 0.3
    keep[0, 0, 5] = False
    keep[0, 0, 9, :64] = False  # hidden in the first segments, visible later
    return q, k, v, keep


def test_on_the_cpu(args: tuple[torch.Tensor, ...]) -> None:
    compiled = redfuser.compile(attend, args, target="cpu", fallback="error")
    assert compiled(*args)[0, :, 5].eq(0).all()
    numerics.require(numerics.check(compiled, attend, args))


def as_tiles(fn: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...], strategy: str, splits: int) -> torch.Tensor:
    (region,) = partition(frontend.import_model(fn, args)).regions
    program = realise(region.fused, strategy, splits)
    machine = target("sm_90a")
    tiles = tensorize(program, configs(program, machine)[0], machine)
    names = {spec: a for spec, a in zip(("q", "k", "v", "keep"), args, strict=True)}
    given = {tensor: names[var].numpy().reshape(region.cascade.tensor(tensor).shape) for tensor, var in region.inputs.items()}
    (out,) = interpret.run(tiles, given).values()
    assert out.shape[-3:] != (40, 2, 64)
    return torch.from_numpy(np.asarray(out, np.float32)).reshape(2, 40, 64)


def widened(args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [a.float() if a.dtype == torch.float16 else a for a in args]


@pytest.mark.parametrize("strategy,splits", [("single", 1), ("multi", 3)])
def test_as_tiles(args: tuple[torch.Tensor, ...], strategy: str, splits: int) -> None:
    torch.testing.assert_close(as_tiles(attend, args, strategy, splits), attend(*widened(args))[0], rtol=0, atol=2e-3)


@pytest.mark.parametrize("strategy,splits", [("single", 1), ("multi", 3)])
def test_weights_by_a_logarithm_of_sums(args: tuple[torch.Tensor, ...], strategy: str, splits: int) -> None:
    """Hidden by the least float32, the logarithm of a row's sum is that number again, so that each weight is 1 and their sum 75:
    in every segment, whatever the sum was before it."""
    def weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = q.float() @ k.float().mT / 8
        s = s + torch.where(keep, 0.0, torch.finfo(torch.float32).min)
        return torch.exp(s - s.logsumexp(-1, keepdim=True)) @ v.float()

    truth = weigh(*args)[0]
    torch.testing.assert_close(truth[:, 5], args[2].float().sum(2)[0])
    torch.testing.assert_close(as_tiles(weigh, args, strategy, splits), truth, rtol=0, atol=2e-3)


def test_two_masks_of_the_least_float(args: tuple[torch.Tensor, ...]) -> None:
    """A causal choice and an added padding mask, both finite: what both hide is -inf, so the sum over a hidden row is not uniform."""
    least = torch.finfo(torch.float32).min
    q, k, v = (a.float()[:, :, :40] for a in args[:3])
    keep = torch.arange(40) >= 6

    def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        i = torch.arange(40)
        scores = torch.where(i[:, None] >= i, q @ k.mT, least) + torch.where(keep, 0.0, least)
        return torch.softmax(scores, -1) @ v

    numerics.require(numerics.check(redfuser.compile(padded, (q, k, v, keep), target="cpu", fallback="error"), padded, (q, k, v, keep)))
