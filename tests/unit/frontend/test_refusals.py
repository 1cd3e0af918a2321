"""What cannot be imported is one coded error that says so; what can only run stays a torch call."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from redfuser import pipeline
from redfuser import tvm_compat as tc
from redfuser.errors import InputError, RedFuserError, UnsupportedError
from redfuser.frontend import import_model
from tests.interpret import resolve, run

X = torch.randn(4, 6)


def refusal(model: Any, args: Any = None, kwargs: Any = None) -> RedFuserError:
    with pytest.raises(RedFuserError) as caught:
        import_model(model, args, kwargs)
    return caught.value


@pytest.mark.parametrize("model", [42, "weights.safetensors", {"a": X}, None], ids=["number", "weights file", "state dict", "none"])
def test_not_a_model(model: Any) -> None:
    assert refusal(model).code == "RF110"


def test_dynamic_dimensions() -> None:
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(nn.Linear(6, 3), (X,), dynamic_shapes=({0: batch},))
    error = refusal(program)
    assert error.code == "RF111" and isinstance(error, InputError) and "dynamic_shapes" in error.help


def test_complex_inputs() -> None:
    error = refusal(lambda z: z.real, (torch.zeros(3, dtype=torch.complex64),))
    assert error.code == "RF112" and "complex64" in error.where


def test_of_what_nothing_reads_nothing_is_said() -> None:
    """A rotary embedding of all columns slices the rest, which is empty, and concatenates it."""
    imported = import_model(lambda x: torch.cat([x * 2, x[:, 6:]], 1), (X,))
    assert not imported.opaque and not imported.notes
    assert import_model(lambda x: x[:, 6:].sum() + x, (X,)).notes


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x * self.seen


@pytest.mark.parametrize(
    "model", [Counter(), lambda x: x.add_(1).sum(), nn.BatchNorm1d(6)], ids=["buffer", "input", "norm"]
)
def test_updates_in_place_are_refused_and_named(model: Any) -> None:
    error = refusal(model, (X.clone(),))
    assert error.code == "RF114" and error.where


@pytest.mark.parametrize(("model", "args"), [
    (nn.Linear(6, 3).half(), (X,)), (lambda x, y: x @ y, (X, torch.ones(6, 2, dtype=torch.bfloat16))),
    (lambda x, y: x @ y, (X.long(), torch.ones(6, 2))), (lambda x, y: torch.addmm(y[0], x, y), (X, torch.ones(6, 2).double())),
], ids=["linear", "half", "integers", "addmm"])
def test_a_product_of_two_dtypes_is_refused_before_it_is_called(model: Any, args: tuple[Tensor, ...]) -> None:
    with pytest.raises(RuntimeError):
        model(*args)
    error = refusal(model, args)
    assert error.code == "RF107" and "product of" in error.what


def test_no_example_arguments() -> None:
    assert refusal(nn.Linear(6, 3)).code == "RF117"


def test_model_that_torch_cannot_export() -> None:
    error = refusal(lambda x: x if x.sum() > 0 else -x, (X,))
    assert error.code == "RF118" and error.why and error.where.startswith("test_refusals.py:")
    assert "torch.where" in error.help


def branch_of_a_library() -> Any:
    """A function that branches on data, in a module that lies among the libraries."""
    text = "def forward(x):\n    if x.sum() > 0:\n        return x\n    return -x\n"
    names: dict[str, Any] = {"__name__": "elsewhere.models"}
    exec(compile(text, f"{sysconfig.get_paths()['purelib']}/elsewhere/models.py", "exec"), names)
    return names["forward"]


def test_lines_of_models_that_a_library_has_are_named() -> None:
    forward = branch_of_a_library()
    assert refusal(forward, (X,)).where == "models.py:2 in forward"
    failed = refusal(forward, (torch.ones(2, device="meta"),))  # without any export too
    assert failed.code == "RF107" and failed.where == "models.py:2 in forward"


def test_what_torch_itself_reads_is_said_to_be_read() -> None:
    error = refusal(torch.cov, (X,))
    assert error.code == "RF118" and "torch.compile" in error.help


@pytest.mark.parametrize("model, named", [
    (lambda x: torch.linalg.lu_factor(x[:, :4])[0], "aten._linalg_check_errors.default"),
    (lambda x: x + torch.randn(4, 6, generator=torch.Generator()), "aten.randn.generator")], ids=["effect", "object"])
def test_what_is_no_tensor_is_named_by_what_uses_it(model: Any, named: str) -> None:
    error = refusal(model, (X,))
    assert error.code == "RF113" and error.where.startswith(f"{named} (test_refusals.py:")


def test_a_matrix_that_has_no_inverse_is_an_error_in_the_call() -> None:
    for model in torch.linalg.inv, torch.inverse, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x[:, :2]):
        imported = import_model(model, (torch.eye(4),))
        given = torch.eye(4) + torch.ones(4, 4)
        torch.testing.assert_close(run(imported, (given,))[0], model(given))
        with pytest.raises(torch.linalg.LinAlgError):
            run(imported, (torch.zeros(4, 4),))


def test_no_tensor_result() -> None:
    assert refusal(lambda x: None, (X,)).code == "RF116"


def test_everything_that_cannot_run_is_listed_at_once() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        positive = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return positive, torch.view_as_real(torch.sqrt(torch.fft.fft(x))).sum()

    error = refusal(model, (X,))
    assert isinstance(error, UnsupportedError) and error.code == "RF115"
    assert "cond (test_refusals.py:" in error.where and "control flow" in error.where and "sqrt" in error.where
    assert error.where.count("cond (") == 1
    assert "attribute" not in error.where


def test_data_dependent_shapes() -> None:
    assert refusal(lambda x: torch.nonzero(x > 0).sum(), (X,)).code == "RF115"


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda s: torch.where(s > 0, s, 0.0), "select_scatter": lambda s: torch.select_scatter(s, s[0], 0, 0),
    "slice_scatter": lambda s: torch.slice_scatter(s, s[:, :1], 1, 0, 1), "softmax": lambda s: s.softmax(-1),
    "masked": lambda s: s.masked_fill(s > 0, 0.0), "complex": lambda s: (torch.complex(s, s) * 2).real,
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_shapes_that_depend_on_data_are_compared_by_no_pass(name: str) -> None:
    """As many rows and columns as are positive: torch raises where two such extents are compared."""
    def model(x: Tensor) -> Tensor:
        rows, columns = x[x[:, 0] > 0], x[x[:, 1] > 0]
        return OF_ROWS[name](rows @ columns.T)

    error = refusal(model, (X,))
    assert error.code == "RF115" and "index.Tensor (test_refusals.py:" in error.where and "depends on data" in error.where


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x08\x01"])
def test_onnx_that_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert refusal(str(path)).code == "RF119"
    assert refusal(content).code == "RF119"
    assert refusal(str(tmp_path / "absent.onnx")).code == "RF119"


# -- opaque torch calls --------------------------------------------------------------------------------------------------


def unusual(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    histogram = torch.histc(x, bins=4, min=-1.0, max=1.0)
    order = torch.sort(x, dim=-1, descending=True)
    added = x.scatter_add(1, i, x)
    return histogram, order[1], added, torch.logcumsumexp(x, 1), x.index_add(1, i[0, :2], x[:, :2])


def test_unknown_operators_stay_torch_calls_and_are_reported() -> None:
    args = (X, torch.randint(0, 4, (4, 6)))
    imported = import_model(unusual, args)
    assert {c.target for c in imported.opaque.values()} == {
        "aten.histc.default",
        "aten.sort.default",
        "aten.scatter_add.default",
        "aten.logcumsumexp.default",
        "aten.index_add.default",
    }
    told = [n.text for n in pipeline.run(unusual, args, arch="cpu", build=False, verify="0").report.notes]
    assert all(any(c.target in text for text in told) for c in imported.opaque.values())
    assert all(c.provenance.source.startswith("test_refusals.py:") for c in imported.opaque.values())
    for ours, theirs in zip(run(imported, args), unusual(*args), strict=True):
        assert torch.equal(ours, theirs)


def test_a_function_that_a_kernel_has_is_not_said_to_stay_torchs() -> None:
    """It is a map like others, of which nothing is said either where they run one by one."""
    def angles(x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(x, x + 1) * 2 + torch.remainder(x, 0.3)

    args = (torch.randn(4, 600),)
    report = pipeline.run(angles, args, arch="sm_90a", build=False, verify="0").report
    assert len(report.maps) == 1 and not report.opaque and not any("torch call" in n.text for n in report.notes)


def test_templates_survive_json() -> None:
    imported = import_model(unusual, (X, torch.randint(0, 4, (4, 6))))
    for call in imported.opaque.values():
        assert json.loads(json.dumps(call.args)) == list(call.args)
        assert json.loads(json.dumps(call.kwargs)) == call.kwargs
        assert call.tensors >= 1


def test_multiple_results_and_device_arguments() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.kthvalue(x, 2)
        return values + torch.rand(4, device=x.device) * 0, indices

    imported = import_model(model, (X,))
    assert torch.equal(run(imported, (X,))[0], model(X)[0])
    random = next(c for c in imported.opaque.values() if "rand" in c.target)
    assert random.kwargs["device"] == {"device": True}
    (value,) = resolve(random)()
    assert value.shape == (4,)


def test_forms_that_a_converter_does_not_compute_fall_back() -> None:
    """Attention with dropout, whole quotients towards zero: torch runs them, and the note says why."""
    imported = import_model(lambda x: (torch.div(x, 0.3, rounding_mode="trunc"), torch.nn.functional.linear(x, x[0])), (X,))
    assert len(imported.opaque) >= 1 and any("rounding_mode='trunc'" in n for n in imported.notes)
    torch.testing.assert_close(run(imported, (X,))[0], torch.div(X, 0.3, rounding_mode="trunc"))


# -- Relax modules -------------------------------------------------------------------------------------------------------


def relax_module(build: Any, *inputs: tuple[tuple[int, ...], str]) -> Any:
    blocks = tc.relax.BlockBuilder()
    params = [tc.relax.Var(f"x{i}", tc.tensor_info(s, d)) for i, (s, d) in enumerate(inputs)]
    with blocks.function("main", params):
        with blocks.dataflow():
            out = blocks.emit_output(build(blocks, *params))
        blocks.emit_func_output(out)
    return blocks.get()


def test_relax_module_is_normalised() -> None:
    op = tc.relax.op

    def build(b: Any, q: Any, k: Any) -> Any:
        s = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [1, 0]))))
        p = b.emit(op.nn.softmax(b.emit(op.reshape(b.emit(op.reshape(s, (20,))), (4, 5))), -1))
        halves = b.emit(op.split(b.emit(op.matmul(p, k)), 2, 1))
        return b.emit(op.concat([b.emit(halves[1]), b.emit(halves[0])], 1))

    q, k = torch.randn(4, 8).half(), torch.randn(5, 8).half()
    imported = import_model(relax_module(build, ((4, 8), "float16"), ((5, 8), "float16")))
    assert imported.source == "relax" and [i.name for i in imported.inputs] == ["x0", "x1"]
    names = [tc.op_name(b.value) for b in tc.bindings(imported.mod["main"])]
    assert "reshape" not in names and "split" not in names
    p = torch.softmax((q.float() @ k.float().t()).half().float(), -1).half()
    o = (p.float() @ k.float()).half()
    torch.testing.assert_close(run(imported, (q, k))[0], torch.cat([o[:, 4:], o[:, :4]], 1), rtol=2e-3, atol=2e-3)


def test_relax_attention_operator() -> None:
    x = torch.randn(2, 5, 3, 8)
    mod = relax_module(
        lambda b, q: b.emit(tc.relax.op.nn.attention(q, q, q, causal_mask="TopLeft")), ((2, 5, 3, 8), "float32")
    )
    t = x.transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(t, t, t, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(run(import_model(mod), (x,))[0], expected)


def test_relax_module_with_what_cannot_run() -> None:
    mod = relax_module(
        lambda b, x: b.emit(tc.call_dps_packed("mine", [x], tc.tensor_info((2,), "float32"))), ((2,), "float32")
    )
    error = refusal(mod)
    assert error.code == "RF115" and "call_dps_packed" in error.where


def test_relax_module_with_symbolic_shapes() -> None:
    n = tc.tirx.Var("n", "int64")
    blocks = tc.relax.BlockBuilder()
    x = tc.relax.Var("x", tc.TensorStructInfo([n, 4], "float32"))
    with blocks.function("main", [x]):
        blocks.emit_func_output(blocks.emit(tc.relax.op.exp(x)))
    assert refusal(blocks.get()).code == "RF111"


def test_what_assertions_alone_read_is_not_computed() -> None:
    def model(x: Tensor, lengths: Tensor) -> Tensor:
        torch._check(lengths.max().item() <= x.shape[0])
        return torch.softmax(x, -1)

    found = import_model(model, (X, torch.tensor([1, 2])))
    assert not found.opaque and any("assertion on data is not made (test_refusals.py:" in note for note in found.notes)


def test_weights_of_inference_mode_are_told() -> None:
    with torch.inference_mode():
        model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with pytest.raises(InputError, match="RF118") as refused:
        import_model(model, (x,))
    assert "torch.inference_mode()" in refused.value.help
    with torch.inference_mode():
        import_model(model, (x,))


def test_a_machine_without_room_is_not_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.export, "export", full)
    with pytest.raises(InputError, match="RF109"):
        import_model(torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
