"""Calls under tracers, modes and transforms, and inputs without plain memory: the right result or a coded refusal, never a
result that was recorded from the example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import redfuser
from redfuser.errors import InputError

X, Y = torch.randn(4, 32), torch.randn(4, 32)


def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x, -1) * 2, x.abs().amax(-1) + x[:, 0]


@pytest.fixture(scope="module")
def compiled() -> Any:
    made = redfuser.compile(model, (X,), fallback="allow")
    assert made.kernels
    return made


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_tracers_see_the_kernels_and_not_the_examples_result(compiled: Any) -> None:
    for traced in (torch.jit.trace(compiled, (X,), check_trace=False), make_fx(compiled)(X),
                   torch.func.functionalize(compiled)):
        same(traced(Y), model(Y))
    with FakeTensorMode() as mode:
        found = compiled(mode.from_tensor(X))
    assert [tuple(t.shape) for t in found] == [(4, 32), (4,)]


@pytest.mark.parametrize("view", [
    lambda x: torch._neg_view(x), lambda x: torch.complex(x, x).conj().imag, lambda x: torch._neg_view(x.t().contiguous()).t(),
    lambda x: x.t().contiguous().t(), lambda x: x[:1].expand(4, 32), lambda x: x.as_subclass(type("Sub", (torch.Tensor,), {})),
], ids=["negated", "imaginary part of a conjugate", "negated and strided", "strided", "expanded", "subclass"])
def test_views_keep_their_sign_and_order(compiled: Any, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = view(X)
    same(compiled(x), model(x.resolve_neg().contiguous().as_subclass(torch.Tensor)))


def test_a_negated_weight_keeps_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_DISABLE", "1")
    weight = torch._neg_view(torch.randn(32))

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * self.w, -1)

    made = redfuser.compile(Scaled(), (X,), fallback="allow")
    assert not any(b.is_neg() for b in made.buffers())
    torch.testing.assert_close(made(X), torch.softmax(X * weight, -1))


def dual(f: Any) -> Any:
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(X, Y))


@pytest.mark.parametrize("call", [
    lambda f: torch.vmap(f)(torch.stack([X, Y])), lambda f: torch.func.jvp(f, (X,), (Y,)),
    lambda f: torch.func.grad(lambda x: f(x)[1].sum())(X), dual, torch.jit.script,
], ids=["vmap", "jvp", "grad", "dual", "script"])
def test_transforms_without_a_rule_are_refused(compiled: Any, call: Callable[[Any], Any]) -> None:
    with torch.no_grad(), pytest.raises(InputError) as caught:
        call(compiled)
    assert caught.value.code == "RF517"


@pytest.mark.parametrize("odd", [
    lambda: X.to_sparse(), lambda: X.to_sparse_csr(), lambda: torch.nested.nested_tensor([X[0], X[1]]),
    lambda: torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), lambda: X.to_mkldnn(),
    lambda: torch._efficientzerotensor((4, 32)), lambda: FakeTensorMode().from_tensor(X),
], ids=["coo", "csr", "nested", "jagged", "mkldnn", "zero", "fake"])
def test_tensors_without_plain_memory_are_refused(compiled: Any, odd: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(InputError) as caught:
        compiled(odd())
    assert caught.value.code == "RF518"
    same(compiled(X), model(X))


def test_transforms_of_something_else_do_not_matter(compiled: Any) -> None:
    out = torch.vmap(lambda s: compiled(X)[0] * s)(torch.ones(3))
    torch.testing.assert_close(out[1], model(X)[0])
    with forward_ad.dual_level():
        same(compiled(X), model(X))
