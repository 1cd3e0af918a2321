"""Graphs of ``torch.compile`` that are not ours: who runs them, and what is said of it."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from redfuser import dynamo
from redfuser.dynamo import graphs
from redfuser.dynamo.compiler import Process
from redfuser.dynamo.options import chosen
from redfuser.dynamo.recipe import GivenBack
from redfuser.errors import LoweringError, UnsupportedError
from tests.e2e.torch_compiled import came, ours, softmax

pytestmark = pytest.mark.usefixtures("store", "fresh")


def given_back(code: str, f: Any, *args: Any) -> Any:
    """The result of a graph that is not ours, with its one note."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = ours(f)(*args)
    assert [str(w.message)[:5] for w in told if str(w.message).startswith("RF")] == [code]
    assert [r.code for r in dynamo.reports()] == [code]
    return found


def test_gradients_are_given_back_with_one_note() -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    given_back("RF130", model, x).sum().backward()
    assert model.weight.grad is not None


def test_no_grad_inside_of_a_graph_is_ours() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return softmax(x * w)

    w = nn.Parameter(torch.randn(8))
    got = ours(f)(torch.ones(4, 8), w)
    assert came() == ["compiled"] and not got.requires_grad


def test_a_norm_of_the_batch_that_keeps_nothing_is_ours() -> None:
    norm, x = nn.BatchNorm1d(8, track_running_stats=False), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(norm)(x), norm(x))
    assert came() == ["compiled"]


def test_the_data_of_a_tensor_is_its_own() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.data.mul_(2)
        return softmax(x * w.data.abs().max())

    w, x = nn.Parameter(torch.randn(8)), torch.randn(4, 8)
    with torch.no_grad():
        want = softmax(x * 2 * w.abs().max())
        torch.testing.assert_close(ours(f)(x, w), want)
    assert came() == ["compiled"]


def test_training_and_random_numbers_are_given_back() -> None:
    with torch.no_grad():
        given_back("RF131", nn.Sequential(nn.Dropout(0.5), nn.Softmax(-1)), torch.ones(2, 8))
        dynamo.clear()
        given_back("RF131", lambda x: softmax(x + torch.rand_like(x)), torch.ones(2, 8))
        dynamo.clear()
        norm = nn.BatchNorm1d(8)
        given_back("RF131", norm, torch.randn(4, 8))
        assert norm.running_mean is not None and bool(norm.running_mean.any())
        dynamo.clear()
        given_back("RF133", lambda z: z * 2, torch.ones(3, dtype=torch.complex64))
        dynamo.clear()
        with torch.autocast("cpu", torch.bfloat16):
            assert given_back("RF133", lambda x: softmax(x @ x), torch.ones(3, 3)).dtype == torch.bfloat16


def test_inputs_that_share_memory_run_as_torch_has_it() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return torch.softmax(b * 2, -1)

    compiled = ours(f)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="RF137"):
        apart = torch.zeros(2, 8), torch.ones(2, 8)
        torch.testing.assert_close(compiled(*apart), f(*apart))
        whole, same = torch.zeros(3, 8), torch.zeros(3, 8)
        torch.testing.assert_close(compiled(whole[:2], whole[1:]), f(same[:2], same[1:]))
        torch.testing.assert_close(whole, same)


@pytest.mark.parametrize("policy", ["allow", "error"])
def test_what_is_told_at_a_call_is_told_as_the_options_say(policy: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return torch.softmax(b * 2, -1)

    compiled, whole = ours(f, fallback=policy), torch.zeros(3, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.zeros(2, 8), torch.ones(2, 8))
        for _ in range(2):
            if policy == "allow":
                compiled(whole[:2], whole[1:])
            else:
                with pytest.raises(LoweringError, match="RF137"):
                    compiled(whole[:2], whole[1:])
    assert dynamo.reports()[-1].code == "RF137"


def test_a_part_of_a_broadcast_input_is_written_as_eager_writes_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[0].zero_()
        return softmax(x)

    for make in (lambda: torch.ones(1, 8).expand(4, 8), lambda: torch.arange(12.0).unfold(0, 4, 2)):
        dynamo.clear()
        x, same = make(), make()
        with torch.no_grad():
            torch.testing.assert_close(given_back("RF133", f, x), f(same))
        torch.testing.assert_close(x, same)
    with torch.no_grad():  # a step between elements is no overlap
        torch.testing.assert_close(ours(f)(torch.ones(8, 8)[::2, ::2]), f(torch.ones(4, 4)))


def test_results_may_be_written_where_gradients_are_on() -> None:
    def f(x: torch.Tensor) -> Any:
        y = softmax(x) + 23
        return x.view(-1), y, y[1:], y.permute(1, 0) + 1

    factor, compiled = torch.ones((), requires_grad=True), ours(f)
    for k in range(4):
        compiled(torch.randn(4, 8))[k].mul_(factor).sum().backward()
    assert factor.grad is not None and came() == ["compiled"]


def test_a_detached_input_asks_for_no_gradient() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    same, rows, result = ours(lambda x: (x.detach(), x.detach()[1:], softmax(x.detach())))(x)
    assert not (same.requires_grad or rows.requires_grad or result.requires_grad) and same.data_ptr() == x.data_ptr()
    assert came() == ["compiled"]


def test_derivatives_are_given_back_and_leave_nothing_behind() -> None:
    def sums(x: torch.Tensor) -> torch.Tensor:
        return softmax(x)[..., 0].sum()

    x = torch.randn(3, 8)
    with torch.no_grad():
        for f in (torch.func.grad(sums), torch.func.hessian(lambda x: torch.logsumexp(x, -1).sum()),
                  lambda x: torch.func.jvp(softmax, (x,), (x,))[1]):
            dynamo.clear()
            torch.testing.assert_close(given_back("RF130", lambda x, f=f: f(x), x), f(x))


def test_a_graph_that_fails_inside_of_a_transform_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from redfuser import frontend
    from redfuser.dynamo.capture import capture

    def within(*_: Any, **__: Any) -> None:
        torch._C._functorch._vmap_increment_nesting(3, "error")
        raise UnsupportedError("RF115", "planted")

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._functorch._vmap_increment_nesting, (3, "error"))
    graph.output((graph.call_function(torch.mm, (x, x)),))
    with torch.no_grad(), pytest.raises(GivenBack):
        capture(torch.fx.GraphModule({}, graph), [torch.ones(3)])
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    monkeypatch.setattr(frontend, "_import", within)
    with pytest.raises(UnsupportedError, match="planted"):
        frontend.import_model(None)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_types_that_nothing_names_are_the_default_type() -> None:
    def f(n: torch.Tensor) -> Any:
        return torch.zeros(3), torch.softmax(n / 3, -1), n.sin()

    n = torch.arange(24).view(3, 8) % 5
    with torch.no_grad():
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            torch._dynamo.reset()
            torch.set_default_dtype(dtype)
            try:
                for a, b in zip(ours(f)(n), f(n), strict=True):
                    torch.testing.assert_close(a, b)
            finally:
                torch.set_default_dtype(torch.float32)
    assert came() == ["compiled"] * 3


def test_graphs_that_depend_on_data_are_given_back() -> None:
    from redfuser.dynamo.capture import capture

    graph = torch.fx.symbolic_trace(lambda x: x.nonzero())
    with torch.no_grad(), pytest.raises(GivenBack, match="RF132"):
        capture(graph, [torch.ones(3)])


def test_a_float_of_more_than_one_value_is_given_back_as_that() -> None:
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return softmax(x * by) + 21

    compiled, x = ours(scaled, fallback="allow"), torch.randn(2, 8)
    with torch.no_grad():
        for by in (1.0, 2.5, 3.5):
            torch.testing.assert_close(compiled(x, by), scaled(x, by))
    first, second = dynamo.reports()
    assert first.came == "compiled" and second.code == "RF132" and "float" in second.note


def test_what_the_default_backend_asks_of_torch_compile_is_asked() -> None:
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    from redfuser.dynamo import otherwise

    def again(*_: Any) -> Any:
        raise TensorifyScalarRestartAnalysis

    torch._dynamo.register_backend(again, name="again_for_redfuser")
    try:
        with pytest.raises(TensorifyScalarRestartAnalysis):
            otherwise.compiled(torch.fx.symbolic_trace(softmax), [torch.ones(2, 8)], chosen(None, {"otherwise": "again_for_redfuser"}), "0/0")
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop("again_for_redfuser")
        torch._dynamo.backends.registry._BACKENDS.pop("again_for_redfuser")
    assert not dynamo.reports()


def test_kernels_that_nobody_has_compiled_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:

    text = SimpleNamespace(kernels={"k": SimpleNamespace(finished=False)})
    monkeypatch.setattr(graphs, "_artifact", lambda *_: b"")
    monkeypatch.setattr(graphs, "_loaded", lambda _: text)
    with torch.no_grad():
        given_back("RF521", lambda x: softmax(x) + 19, torch.ones(2, 8))
    dynamo.clear()


def test_an_error_of_the_compiler_is_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise UnsupportedError("RF115", "operators that can neither be compiled nor run as torch calls", where="aten.odd")

    monkeypatch.setattr(Process, "compile", refuse)
    with torch.no_grad():
        given_back("RF135", lambda x: softmax(x) + 17, torch.ones(2, 8))
    assert "RF115" in dynamo.reports()[0].note
    dynamo.clear()
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="RF135"):
        ours(lambda x: softmax(x) + 18, fallback="error")(torch.ones(2, 8))


def test_operators_of_a_library_are_given_back_before_the_compiler_meets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise AssertionError("it does not know them, and is started anew after each")

    twice = torch.library.custom_op("redfuser_tests::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    twice.register_fake(torch.empty_like)
    monkeypatch.setattr(Process, "compile", broken)
    with torch.no_grad():
        given_back("RF135", lambda x: softmax(twice(x)), torch.ones(2, 8))
    assert "redfuser_tests.twice" in dynamo.reports()[0].note


def test_where_the_default_backend_cannot_run_eager_does() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    torch._dynamo.register_backend(broken, name="broken_for_redfuser")
    try:
        with pytest.warns(RuntimeWarning, match="RF138"):
            found = torch.compile(nn.Linear(8, 8), backend=dynamo.backend, options={"otherwise": "broken_for_redfuser"})(torch.ones(2, 8))
        assert found.requires_grad and [r.code for r in dynamo.reports()] == ["RF130", "RF138"]
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop("broken_for_redfuser")
        torch._dynamo.backends.registry._BACKENDS.pop("broken_for_redfuser")
