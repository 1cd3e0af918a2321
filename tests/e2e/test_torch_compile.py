"""torch.compile(model, backend="redfuser"): what users of torch.compile may rely on, and what they are told."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.convert_frame import compile_lock

import redfuser
from redfuser import dynamo
from redfuser.dynamo import compiler, graphs, options
from redfuser.dynamo.compiler import Process
from redfuser.dynamo.options import chosen
from redfuser.dynamo.program import Program
from redfuser.dynamo.recipe import GivenBack
from redfuser.errors import InputError, LoweringError, UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
EAGER = {"otherwise": "eager"}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store and one compile process for all; certificates are other tests' business."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDFUSER_CACHE_DIR", str(folder))
        patch.setenv("REDFUSER_VERIFY", "0")
        yield folder
    compiler.process().stop()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.clear()
    yield
    torch._dynamo.reset()


def ours(f: Any, **more: Any) -> Any:
    return torch.compile(f, backend=dynamo.backend, options={**EAGER, **more})


def came() -> list[str]:
    return [r.came for r in dynamo.reports()]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


class Step(nn.Module):
    """A softmax over a linear layer that writes a cache and its input, and returns all there is to alias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor, n: int) -> Any:
        y = torch.softmax(self.linear(x), -1)
        self.cache.index_copy_(0, at, y[:1])
        before = x.clone()
        x.add_(1)
        self.cache[:, 2:4] *= 2
        return y, y.t(), y[1:, ::2], x, x.view(-1), x[:, 1:3], self.cache, self.cache + 1, before, n


# -- what users rely on ------------------------------------------------------------------------------------------------


def test_it_is_found_by_name_and_keeps_tvm_out(tmp_path: Path, store: Path) -> None:
    """As installed: the entry point of pyproject.toml, in a process that imports nothing of ours. The kernel takes scratch from the
    heap, which TVM's runtime used to give it: without one it died."""
    metadata = tmp_path / "redfuser-0.1.0.dist-info"
    metadata.mkdir()
    found = re.search(r"^\[project.entry-points.torch_dynamo_backends\]\n(redfuser = .*)$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert found
    (metadata / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{found[1].replace(chr(34), '')}\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: redfuser\nVersion: 0.1.0\n")
    code = """
import sys, torch
assert "redfuser" in torch._dynamo.list_backends()
assert "redfuser" not in sys.modules
def f(x): return torch.nn.functional.layer_norm(x * 2, (768,))  # a row that does not fit on the stack
x = torch.randn(4, 768)
with torch.no_grad():
    got = torch.compile(f, backend="redfuser", options={"otherwise": "eager"})(x)
torch.testing.assert_close(got, f(x))
import redfuser.dynamo
(report,) = redfuser.dynamo.reports()
assert report.came == "compiled" and len(report.report.fused) == 1, report
assert "tvm" not in sys.modules and "tilelang" not in sys.modules
"""
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
                         timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_effects_views_and_parameters_are_eagers(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    model, same = Step().eval(), Step().eval()
    same.load_state_dict(model.state_dict())
    compiled = ours(model)
    weight = nn.Parameter(torch.randn(8, 8))
    with torch.no_grad(), caplog.at_level(logging.INFO, "redfuser.dynamo"):
        for turn in range(4):
            x, at = torch.randn(4, 8), torch.tensor([turn])
            given = x.clone()
            got, want = compiled(x, at, 3), same(given, at, 3)
            for a, b in zip(got, want, strict=True):
                if isinstance(a, torch.Tensor):
                    torch.testing.assert_close(a, b)
                    assert a.stride() == b.stride()
                else:
                    assert a == b
            torch.testing.assert_close(x, given)
            torch.testing.assert_close(model.cache, same.cache)
            y, yt, part, x_, flat, columns, cache, _, before, _ = got
            assert x_ is x and cache is model.cache
            assert flat.data_ptr() == x.data_ptr() and columns._base is x and yt.data_ptr() == y.data_ptr()
            assert part.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() != before.data_ptr() != x.data_ptr()
            for each in (model, same):  # the parameters stay the module's own
                if turn == 0:
                    each.linear.weight.mul_(1.5)
                elif turn == 1:
                    each.linear.weight = weight
                else:
                    each.linear.bias.data = torch.full((8,), float(turn))
    assert came() == ["compiled"] and "cascades fused for cpu, compiled in" in caplog.text
    (report,) = dynamo.reports()
    assert report.report is not None and len(report.report.fused) == 1 and report.key


def test_no_weight_is_in_the_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Program] = []
    init = Program.__init__
    monkeypatch.setattr(Program, "__init__", lambda self, *a, **k: (init(self, *a, **k), made.append(self))[0])
    model = Step().eval()
    with torch.no_grad():
        ours(model)(torch.randn(4, 8), torch.tensor([0]), 3)
    assert not list(made[0].model.buffers())


def test_shapes_breaks_stores_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = softmax(x)
        torch._dynamo.graph_break()
        return softmax(y)

    with torch.no_grad():
        x = torch.randn(4, 40)
        compiled = ours(softmax, shapes=2)
        for n in (4, 5, 5, 6, 7):
            x = torch.randn(n, 40)
            torch.testing.assert_close(compiled(x), softmax(x))
    assert came()[:2] == ["store" if "store" in came()[:1] else "compiled", "compiled"]
    assert [r.code for r in dynamo.reports()] == ["", "", "", "RF139"]  # 4 alone, then 5 and 6 of any
    # from here on everything is in the store: no compile process is asked
    monkeypatch.setattr(Process, "compile", lambda *_: pytest.fail("compiled although it is in the store"))
    torch._dynamo.reset()
    dynamo.clear()
    x = torch.randn(4, 40)
    with torch.inference_mode():
        torch.testing.assert_close(ours(broken)(x), broken(x))
    assert came() == ["store", "store"]
    torch._dynamo.reset()
    failures: list[BaseException] = []

    def user(f: Any) -> None:
        try:
            mine, x = ours(f), torch.randn(4, 40)
            with torch.no_grad():
                for _ in range(3):
                    torch.testing.assert_close(mine(x), softmax(x))
        except BaseException as error:
            failures.append(error)

    users = [threading.Thread(target=user, args=(f,)) for f in (lambda x: softmax(x), lambda y: softmax(y))]
    for each in users:
        each.start()
    for each in users:
        each.join()
    assert not failures


def test_a_size_that_is_no_input_varies_all_the_same() -> None:
    """Where threads trace side by side torch leaves sizes out of a graph's inputs that nothing in it reads."""
    def without_sizes(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        sizes = [n for n in gm.graph.nodes if n.op == "placeholder" and isinstance(n.meta["example_value"], torch.SymInt)]
        assert sizes and not any(n.users for n in sizes)
        for node in sizes:
            gm.graph.erase_node(node)
        gm.recompile()
        made = graphs.compile_graph(gm, [x for x in inputs if isinstance(x, torch.Tensor)], chosen(None, {"fallback": "allow"}))
        return lambda *args: made(*(x for x in args if isinstance(x, torch.Tensor)))

    compiled = torch.compile(softmax, backend=without_sizes, dynamic=True)
    with torch.no_grad():
        for n in (4, 5, 7, 5):
            x = torch.randn(n, 40)
            torch.testing.assert_close(compiled(x), softmax(x))
    assert len(came()) == 3


def test_another_shape_waits_until_torch_has_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch traces in one thread at a time; what is captured beside it ended in its middle."""
    compiled, made, begun, one = ours(softmax), [], [], graphs._compiled
    with torch.no_grad():
        compiled(torch.randn(4, 41)), compiled(torch.randn(5, 41))
    monkeypatch.setattr(graphs, "_compiled", lambda *args: begun.append(args) or one(*args))

    def another() -> None:
        with torch.no_grad():
            made.append(compiled(torch.ones(6, 41)))

    user = threading.Thread(target=another)
    with compile_lock:
        user.start()
        user.join(0.3)
        assert user.is_alive() and not begun
    user.join()
    assert len(begun) == 1
    torch.testing.assert_close(made[0], softmax(torch.ones(6, 41)))


def test_what_lies_otherwise_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes a graph for every stride, also of an axis of extent 1; results lie as eager's do. A graph that was told its
    strides is another one."""
    def f(x: torch.Tensor) -> Any:
        y = torch.softmax(x * 5, -1)
        return y, y.mT, x[..., ::2]

    def asking(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 6, -1) * x.stride(1)

    x = torch.randn(64)
    given = [x.as_strided((4, 1, 8), strides) for strides in ((8, 8, 1), (8, 1, 1), (8, 0, 1), (1, 1, 4), (16, 3, 1))]
    asked: list[Any] = []
    compile_one = Process.compile
    monkeypatch.setattr(Process, "compile", lambda *args: asked.append(args) or compile_one(*args))
    for _ in range(2):
        torch._dynamo.reset()
        dynamo.clear()
        with torch.no_grad():
            for each in given:
                for mine, eager in zip(ours(f)(each), f(each), strict=True):
                    torch.testing.assert_close(mine, eager)
                    assert mine.stride() == eager.stride()
        assert came()[1:] == ["store"] * 4 and len(asked) == 1
    with torch.no_grad():
        for each in given[:2]:
            torch.testing.assert_close(ours(asking)(each), asking(each))
    assert len(asked) == 3


def test_flex_attention_is_the_score_function_it_is() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")))

    q, k, v = torch.randn(3, 1, 1, 16, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(f)(q, k, v), f(q, k, v), rtol=1e-4, atol=1e-5)
    (report,) = dynamo.reports()
    assert report.report is not None and len(report.report.fused) == 1


def test_encoders_on_their_fast_path_are_ours() -> None:
    """Where nobody asks for gradients torch calls one operator for a layer, and one for an attention."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu").eval()
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x, padded = torch.randn(2, 6, 16), torch.arange(6) >= torch.tensor([[4], [6]])
    given = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)

    def both(x: torch.Tensor) -> Any:
        return torch._native_multi_head_attention(x, x, x, 16, 2, *given, None, False), attention(x, x, x, need_weights=False)

    with torch.no_grad():
        got = ours(layer)(x, src_key_padding_mask=padded)
        torch.testing.assert_close(got, layer(x, src_key_padding_mask=padded), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours(both)(x), both(x), rtol=1e-4, atol=1e-5)
        program = torch.export.export(layer, (x,), strict=True)
    assert [len(r.report.fused) for r in dynamo.reports() if r.report is not None] == [3, 2]
    assert any(n.target is torch.ops.aten._transformer_encoder_layer_fwd.default for n in program.graph.nodes)
    assert len(redfuser.explain(program).fused) == 3


def test_generate_gives_the_tokens_of_eager() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                                         num_key_value_heads=1, max_position_embeddings=32)).eval()
    prompt = torch.randint(0, 64, (1, 5))
    how: dict[str, Any] = dict(max_new_tokens=6, do_sample=False, cache_implementation="static", pad_token_id=0, disable_compile=True)
    want = model.generate(prompt, **how)
    model.forward = ours(model.forward, fallback="allow")
    assert torch.equal(model.generate(prompt, **how), want)
    assert came() and set(came()) <= {"compiled", "store"}
    assert all(r.report is not None and r.report.fused for r in dynamo.reports())


# -- what is given back ------------------------------------------------------------------------------------------------


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
    from redfuser.dynamo import graphs

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


# -- CUDA graphs, on a stand-in for the device ---------------------------------------------------------------------------


class Tape:
    """Records nothing: a replay computes again what was captured, into the same results."""

    captured: tuple[Any, list[torch.Tensor], list[torch.Tensor]]

    def replay(self) -> None:
        compute, own, results = self.captured
        for mine, new in zip(results, compute(own), strict=True):
            mine.copy_(new)


def test_a_graph_is_replayed_on_what_lies_where_it_lay(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager, nullcontext

    from redfuser.dynamo import replay

    @contextmanager
    def graph(_: Any) -> Iterator[None]:
        nonlocal capturing
        capturing = True
        yield
        capturing = False

    capturing, calls = False, []
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stream = type("Stream", (), {"wait_event": lambda *_: None, "record_event": lambda *_: 1})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)

    def compute(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        weight, x, counter = tensors
        calls.append("captured" if capturing else "run")
        found = [x * weight]
        if capturing:
            Tape.captured = (compute, tensors, found)
        else:
            counter.add_(1)
        return found

    weight, run = nn.Parameter(torch.full((2,), 3.0), requires_grad=False), replay.Replayed(compute, [2], torch.device("cpu"), "g")
    kept = []
    for turn in range(4):
        counter = torch.full((2,), float(turn))
        x = torch.full((2,), float(turn))
        kept.append(run([weight, x, counter])[0])
        assert torch.equal(counter, torch.full((2,), turn + 1.0)) and torch.equal(x, torch.full((2,), float(turn)))
        weight.mul_(2)  # read where it lies
    assert [k[0].item() for k in kept] == [0, 6, 24, 72], "results are copies"
    assert calls == ["run", "captured", "run", "run", "run"]
    with pytest.warns(RuntimeWarning, match="RF512"):
        for turn in range(replay.CAPTURES + 1):
            moved = nn.Parameter(torch.full((2,), float(turn)), requires_grad=False)
            kept.append(moved)
            assert run([moved, torch.ones(2), torch.zeros(2)])[0][0].item() == turn
    assert calls.count("captured") == replay.CAPTURES


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode, given, code", [
    (None, {"targte": "cpu"}, "RF190"), ("max-autotune", {}, "RF191"), (None, {"shapes": 0}, "RF191"), (None, {"casts": "drop"}, "RF191"),
    (None, {"fallback": "eager"}, "RF191"), (None, {"otherwise": "redfuser"}, "RF191"), (None, {"otherwise": "inductr"}, "RF191"), (None, {"cuda_graphs": "yes"}, "RF191")])
def test_options_that_there_are_not(mode: str | None, given: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        chosen(mode, given)
    assert caught.value.code == code


def test_options_reach_torch_compile() -> None:
    with pytest.raises(Exception, match=r"RF190.*\n.*did you mean 'target'"):
        ours(softmax, targte="cpu")(torch.ones(2, 8))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="RF503"), torch.no_grad():
        ours(softmax, target="sm_90a")(torch.ones(2, 8))
    assert chosen("reduce-overhead").cuda_graphs and chosen(None, {"disable": True}).disable
    assert options.table() in (ROOT / "docs" / "torch-compile.md").read_text()
