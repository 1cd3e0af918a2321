"""torch.compile(model, backend="redfuser"): what users of torch.compile may rely on, and what they are told."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.convert_frame import compile_lock

import redfuser
from redfuser import dynamo
from redfuser.dynamo import graphs, options
from redfuser.dynamo.compiler import Process
from redfuser.dynamo.options import chosen
from redfuser.dynamo.program import Program
from redfuser.errors import InputError
from tests.e2e.torch_compiled import ROOT, Step, came, ours, softmax

pytestmark = pytest.mark.usefixtures("store", "fresh")

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
