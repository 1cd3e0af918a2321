"""Complex numbers become pairs of real ones: what the rewritten program returns is what the original returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import redfuser
from redfuser import numerics, outer
from redfuser.errors import UnsupportedError
from redfuser.frontend import complexes, import_model
from redfuser.partition import partition
from tests.interpret import run

X = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))


def z(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


class Rotary(nn.Module):
    """Angles kept as a complex buffer, as LLaMA has them, and a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)
        self.register_buffer("angles", torch.polar(torch.ones(4, 4), torch.rand(4, 4, generator=g)), persistent=False)
        self.mixed = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64, generator=g))

    def forward(self, x: torch.Tensor) -> Any:
        turned = z(x) * self.angles
        return torch.softmax(torch.view_as_real(turned).flatten(-2), -1), (turned @ self.mixed).abs()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "parts": lambda x: (z(x).real, z(x).imag, z(x).real + 1, torch.view_as_real(z(x))),
    "arithmetic": lambda x: torch.view_as_real((z(x) + 2) * z(x) - 1j * z(x).conj() + z(x)[..., :1] - x[..., :4]),
    "broadcast": lambda x: torch.view_as_real(z(x)[:, :1] * z(x) + x[0, 0, :4] - z(x)[:1]),
    "quotients": lambda x: torch.view_as_real(z(x) / (z(x) + (3 - 1j)) + z(x) / 2 + 1 / (z(x) + 3)),
    "functions": lambda x: (torch.exp(z(x)).imag, z(x).angle(), z(x).abs(), torch.polar(x.abs(), x).real),
    "moved": lambda x: torch.view_as_real(torch.cat([z(x).mT.reshape(3, 4, 4)[:, 1:], torch.stack([z(x)[:, 0]], 1)], 1).sum(1)),
    "of real parts": lambda x: torch.view_as_real(torch.complex(x, x * 2).mean(-1) * torch.complex(x, x).sum(1)[:, :1]),
    "from real": lambda x: (x.to(torch.complex64) * z(torch.cat([x, x], -1))).imag,
    "where the operand is": lambda x: torch.view_as_real(z(x) * torch.polar(torch.ones_like(x[0, :, :4]), x[0, :, :4]).to(x.device)),
    "extremes": lambda x: torch.view_as_real(z(x * 1e30) / z(x.flip(-1) * 1e30)),
}


def through_a_part(x: torch.Tensor) -> Any:
    y = x * 1
    z = torch.complex(y, y)
    z.real.mul_(2)
    return y, z.abs()


def through_a_pair(x: torch.Tensor) -> Any:
    z = torch.complex(x, x * 2)
    pair = torch.view_as_real(z)
    pair.add_(1)
    return z.real + 0, z.imag + 0, pair.sum(-1)


def through_what_it_sees(x: torch.Tensor) -> Any:
    y = x * 1
    seen = z(y)
    y.add_(1)
    return seen.abs()


@pytest.mark.parametrize("written", [through_a_part, through_a_pair, through_what_it_sees])
def test_what_is_written_through_one_view_is_seen_in_the_others(written: Callable[[torch.Tensor], Any]) -> None:
    for got, wanted in zip(run(import_model(written, (X,)), (X,)), pytree.tree_leaves(written(X)), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_written_out_computes_the_same(name: str) -> None:
    program = torch.export.export(Wrapped(PROGRAMS[name]), (X,))
    real = complexes.written_out(program)
    assert not any(map(complexes._complex, real.graph.nodes))
    torch.testing.assert_close(real.module()(X), PROGRAMS[name](X))


class Wrapped(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_complex_weights_are_read_where_they_lie(tmp_path: Any) -> None:
    model = Rotary().eval()
    compiled = redfuser.compile(model, (X,), target="cpu", fallback="error")
    numerics.require(numerics.check(compiled, model, (X,)))
    with torch.no_grad():
        model.mixed.mul_(2j)
    numerics.require(numerics.check(compiled, model, (X,)))
    compiled.save(tmp_path / "rotary.rf")
    numerics.require(numerics.check(redfuser.load(tmp_path / "rotary.rf"), model, (X,)))


def convolved(x: torch.Tensor) -> torch.Tensor:
    """A long convolution, then a softmax; a transform of two axes, of which real numbers are taken."""
    y = torch.fft.irfft(torch.fft.rfft(x, n=15) * torch.fft.rfft(x.flip(-1), n=15), n=15)[..., :8]
    return torch.softmax(y + torch.fft.fft2(x, dim=(-1, -2)).real + torch.fft.ifft(torch.fft.fft(x), dim=0).imag, -1)


def test_fourier_transforms_are_operators_on_pairs(tmp_path: Any) -> None:
    compiled = redfuser.compile(convolved, (X,), target="cpu", fallback="error")
    numerics.require(numerics.check(compiled, convolved, (X,)))
    compiled.save(tmp_path / "fft.rf")
    numerics.require(numerics.check(redfuser.load(tmp_path / "fft.rf"), convolved, (X,)))


@pytest.mark.parametrize("function", [z, lambda x: torch.sqrt(z(x)).real])
def test_what_has_no_rule_is_refused_by_name(function: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"RF115.*complex"):
        redfuser.compile(function, (X,), target="cpu")


def test_a_transform_is_not_copied_for_a_kernel() -> None:
    """Its result lies row by row and begins an allocation; the pairs before it are a kernel's, since torch joins them slowly."""
    imported = import_model(lambda x: torch.softmax(x + torch.fft.fft2(x).real, -1), (X,))
    p = partition(imported)
    text = outer.emit(imported, p.parts, {r.name: r.name.replace(".", "_") for r in p.parts}).source
    assert "redfuser.fft_" in text and [r.name for r in p.parts] == ["softmax.0", "map.0"] and "clone(" not in text
