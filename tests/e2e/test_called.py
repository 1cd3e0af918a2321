"""A compiled model is called like the model it was compiled from: memory, weights, modes and values around the call."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import redfuser
from redfuser.errors import ArtifactError, InputError, UnsupportedError


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDFUSER_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
        patch.setenv("REDFUSER_VERIFY", "0")
        patch.setenv("REDFUSER_FALLBACK", "allow")
        yield


def compiled(f: Any, *args: Any) -> Any:
    with torch.no_grad():
        return redfuser.compile(f, args, target="cpu")


def both(f: Any, folder: Path, *args: Any) -> list[Any]:
    """Compiled, and loaded from a file of it."""
    made = compiled(f, *args)
    made.save(folder / "model.rf")
    return [made, redfuser.load(folder / "model.rf")]


# -- memory ------------------------------------------------------------------------------------------------------------


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> Any:
        s = torch.softmax(x, -1)
        return (x, x.mT, x.clone(), x * 1, torch.cat([x]), F.pad(x, (0, 0)), self.w, self.w.clone(), self.w.mT, self.w * 1,
                s, s.mT, s.clone(), s.mT.clone(), torch.ones(3), torch.eye(3)[1], torch.tensor([1.0, 2.0]), x.split(2)[1])


def test_results_share_memory_as_torchs_do(tmp_path: Path) -> None:
    """What a user writes into a result reaches what it reaches in torch: a clone of an input is none of the input, and a table
    that the model makes is made anew."""
    model, x = Holding().eval(), torch.randn(4, 8)

    def shared(results: Any, weights: list[torch.Tensor]) -> list[Any]:
        owners = {t.untyped_storage().data_ptr(): f"given {i}" for i, t in enumerate([x, *weights])}
        return [owners.setdefault(t.untyped_storage().data_ptr(), i) for i, t in enumerate(results)]

    with torch.no_grad():
        wanted = model(x)
        for each in both(model, tmp_path, x):
            got = each(x)
            weights = [b for b in each.buffers() if b.shape == model.w.shape]
            assert shared(got, weights) == shared(wanted, [model.w])
            for result in (*got[2:6], got[7], *got[9:17]):
                result.fill_(3.0)
            for a, b in zip(each(x), wanted, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("of", [
    lambda x: x.clone().view(torch.int32), lambda x: x.clone().unfold(-1, 3, 1), lambda x: x.clone().as_strided((4,), (1,)),
    lambda x: x.to(torch.float32, copy=True), lambda x: x.t().contiguous().t(), lambda x: x.t().reshape(-1).view(8, 4).t()])
def test_a_copy_that_is_seen_otherwise_is_a_copy(of: Any) -> None:
    x = torch.randn(4, 8)
    result = redfuser.compile(of, (x,))(x)
    torch.testing.assert_close(result, of(x))
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_integers_wrap_around_as_torchs_do(dtype: torch.dtype) -> None:
    def model(x: torch.Tensor) -> Any:
        top = x.amax(-1, keepdim=True)
        return (x - top).amax(-1), (x - top).amin(-1), (x * top).amax(-1), (top - x).float().mul(1e-9).exp().sum(-1)

    ends = torch.iinfo(dtype)
    x = torch.randint(ends.min, ends.max, (4, 100), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = redfuser.compile(model, (x,), fallback="allow")
    for got, wanted in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_weight_that_lies_oddly_is_followed_too() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.randn(40)[3:11])
            self.w = nn.Parameter(torch.randn(8, 16)[:, 1:9])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ self.w + self.b, -1)

    model, x = Odd().eval(), torch.randn(3, 8)
    made = compiled(model, x)
    with torch.no_grad():
        for change in (lambda: model.b.mul_(3), lambda: model.w.t().mul_(0.5), lambda: model.load_state_dict(Odd().state_dict())):
            torch.testing.assert_close(made(x), model(x))
            change()
        torch.testing.assert_close(made(x), model(x))


def test_an_example_that_is_a_weight_is_an_input() -> None:
    model = nn.Linear(8, 8)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.linear(x) @ w, -1)

    x, w = torch.randn(3, 8), torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(Twice(), x, model.weight)(x, w), Twice()(x, w))


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [("compile", "call"), ("call",)])
def test_autocast_is_that_of_the_compilation(on: tuple[str, ...]) -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ y, -1)

    model, args = Layer().eval(), (torch.randn(8, 8) * 9, torch.randn(8, 8))

    def cast(where: str) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if where in on else contextlib.nullcontext()

    with torch.no_grad():
        with cast("compile"):
            wanted = model(*args)
            made = redfuser.compile(model, args, target="cpu")
        assert "forward" not in vars(model)
        for where in ("call", "later"):
            with cast(where):
                torch.testing.assert_close(made(*args), wanted)


def test_derivatives_are_refused_and_leave_nothing_behind() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)[..., 0].sum()

    x = torch.randn(3, 8)
    for f in (torch.func.grad(total), torch.func.jacrev(lambda x: torch.softmax(x, -1)),
              lambda x: torch.func.jvp(total, (x,), (x,))[1]):
        with pytest.raises(UnsupportedError, match=r"RF115(.|\n)*derivatives"):
            compiled(lambda x, f=f: f(x), x)
        assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
        torch.testing.assert_close(torch.func.jvp(total, (x,), (x,))[1], torch.func.jvp(total, (x,), (x,))[1])
    torch.testing.assert_close(compiled(lambda x: torch.func.vmap(lambda r: torch.softmax(r, -1))(x), x)(x), torch.softmax(x, -1))


# -- values and files --------------------------------------------------------------------------------------------------


def test_numbers_among_the_arguments_are_the_same_numbers(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    for each in both(lambda x, s: torch.softmax(x, -1), tmp_path, x, float("nan")):
        torch.testing.assert_close(each(x, float("nan")), torch.softmax(x, -1))
    for each in both(lambda x, s: torch.softmax(x, -1) / s, tmp_path, x, 0.0):
        with pytest.raises(InputError, match="RF514"):
            each(x, -0.0)


def test_a_member_of_an_enumeration_is_a_value() -> None:
    x = torch.randn(3, 8)
    compiled = redfuser.compile(lambda x, how: torch.softmax(x, -1) if how is How.SOFT else x, (x, How.SOFT))
    torch.testing.assert_close(compiled(x, How.SOFT), torch.softmax(x, -1))
    with pytest.raises(InputError, match="RF514"):
        compiled(x, How.HARD)


class How(enum.Enum):
    SOFT, HARD = 1, 2


class Summed(torch.nn.Module):
    def forward(self, parts: dict[str, Any], x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        summed = torch.softmax(parts["a"] + parts["b"][0] + x, -1)
        return summed if mask is None else summed * mask


def test_an_argument_by_position_may_be_given_by_its_name(tmp_path: Path) -> None:
    x, y = torch.randn(2, 2, 8)
    parts = {"a": x, "b": [y]}
    compiled = redfuser.compile(Summed(), (parts, x), {"mask": y})
    compiled.save(tmp_path / "model.rf")
    for model in (compiled, redfuser.load(tmp_path / "model.rf")):
        assert torch.equal(model(parts, mask=y, x=x), model(parts, x, mask=y))
        for args, kwargs, why in (((parts, x), {"x": x, "mask": y}, "({'a': tensor, 'b': [tensor]}, tensor, x=tensor, mask=tensor)"),
                                  ((x, 3.0), {"mask": y}, "(tensor, 3.0, mask=tensor)"), ((), {"x": x, "mask": y}, "(x=tensor, mask=tensor)"),
                                  (({"a": x, "b": ()}, x), {"mask": y}, "({'a': tensor, 'b': ()}, tensor, mask=tensor)")):
            with pytest.raises(InputError) as caught:
                model(*args, **kwargs)
            assert caught.value.code == "RF511"
            assert caught.value.why == f"called with {why}, compiled for ({{'a': parts_a, 'b': [parts_b_0]}}, x, mask=mask)"


def test_an_input_that_is_not_dense_is_named() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(InputError, match="RF518 input 'y' is a tensor of layout sparse_coo"):
        compiled(lambda x, y: torch.softmax(x + y, -1), x, x)(x, x.to_sparse())


def test_models_of_other_shapes_are_not_saved_together(tmp_path: Path) -> None:
    one, other = (redfuser.compile(lambda x: torch.softmax(x, -1), (torch.ones(n, 64),), target=target)
                  for n, target in ((8, "cpu"), (16, "sm_90a")))
    with pytest.raises(ArtifactError, match="RF607 the models to save together are not the same model"):
        one.save(tmp_path / "x.rf", [other])


# -- examples beside a program -----------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.softmax(x * scale, -1)


@pytest.mark.parametrize("args, kwargs, code", [
    ((torch.ones(4, 8), 2.0), None, "RF505 input 'x' has shape"), ((torch.ones(3, 8).half(), 2.0), None, "RF504 input 'x'"),
    ((torch.ones(3, 8),), None, "RF511"), ((torch.ones(3, 8), 3.0), None, "RF514 an argument is 3.0"),
    ((3.0, 2.0), None, "RF502 input 'x'"), ("x", None, "RF117"), ((), {"x": torch.ones(3, 8), "scale": 2.0}, "RF511"),
])
def test_examples_that_an_exported_program_is_not_of_are_named(args: Any, kwargs: Any, code: str) -> None:
    program = torch.export.export(Scaled(), (torch.ones(3, 8), 2.0))
    for made in (redfuser.compile, redfuser.explain):
        with pytest.raises(InputError, match=f"{code}.*the example arguments"):
            made(program, args, kwargs, target="cpu")
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own tree code warns of itself where an export is copied
        made = redfuser.compile(program, (x, 2.0), target="cpu", check=True)
    torch.testing.assert_close(made(x, 2.0), torch.softmax(x * 2, -1))


def test_examples_that_an_onnx_model_is_not_of_are_named() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.helper.make_model(onnx.parser.parse_graph("m (float[3, 8] x) => (float[3, 8] y) { y = Softmax(x) }"))
    with pytest.raises(InputError, match=r"RF505 input 'x' has shape \[2, 8\]"):
        redfuser.compile(model, (torch.ones(2, 8),), target="cpu")
    x = torch.randn(3, 8)
    torch.testing.assert_close(redfuser.compile(model, (x,), target="cpu")(x), torch.softmax(x, -1))


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_takes_no_other_values_name() -> None:
    """Names of a Relax module are its author's."""
    from redfuser.tvm_compat import relax, tensor_info

    blocks, given = relax.BlockBuilder(), relax.Var("x", tensor_info((3, 8), "float32"))
    with blocks.function("main", [given]):
        with blocks.dataflow():
            first = blocks.emit(relax.op.nn.relu(given), "y_1_own")
            out = blocks.emit_output(relax.Tuple([first, blocks.emit(relax.op.permute_dims(given), "y")]))
        blocks.emit_func_output(out)
    x = torch.randn(3, 8)
    for found, wanted in zip(redfuser.compile(blocks.get(), target="cpu")(x), (torch.relu(x), x.mT), strict=True):
        assert torch.equal(found, wanted)


def test_a_result_is_copied_once_and_what_is_computed_not_at_all() -> None:
    """Counted as torch sees them: whatever has memory of its own is written into it by one operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten._to_copy):
                self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def model(x: torch.Tensor) -> Any:
        return (x.mT.contiguous().view(-1), x.mT.reshape(-1).clone(), x[:, :2].contiguous().view(-1), x.clone().view(-1), x.mT.clone(),
                x.expand(2, 3, 8).reshape(6, 8).clone(), x.view(6, 4).mT.contiguous().view(3, 8), x, x.mT, x + 1, (x * 2).view(-1))

    x = torch.randn(3, 8)
    made = compiled(model, x)
    with Copies() as copies:
        found = made(x)
    assert len(copies.seen) == 7, (copies.seen, made.source())
    for a, b in zip(found, model(x), strict=True):
        assert torch.equal(a, b)
    found[1].zero_()
    assert bool(x.any())
