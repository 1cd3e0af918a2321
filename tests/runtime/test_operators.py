"""The operators of a saved graph: the list is what the emitter writes, and every rule says what torch does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from operator_examples import EXAMPLES, TENSORS, WRONG

from redfuser.errors import ArtifactError
from redfuser.runtime.guard import check_graph
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.operators import INFIX, OPAQUE, OPERATORS
from redfuser.runtime.parts import Graph
from redfuser.runtime.rehearsal import rehearse
from redfuser.runtime.shapes import Shaped, promoted
from redfuser.runtime.signature import Signature, TensorSpec
from tests.runtime import hostile_graphs

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {name: Shaped(*kind) for name, kind in TENSORS.items()}
SIGNS = {"+": "Add", "-": "Sub", "*": "Mult", "/": "Div", "//": "FloorDiv", "%": "Mod", "==": "Eq", "!=": "NotEq", "<": "Lt",
         "<=": "LtE", ">": "Gt", ">=": "GtE", "&": "BitAnd", "|": "BitOr", "^": "BitXor", "<<": "LShift", ">>": "RShift"}


def make() -> dict[str, torch.Tensor]:
    """The tensors of the examples: numbers that every operator takes, indices within bounds."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, (dtype, shape) in TENSORS.items():
        whole = torch.randint(1, 4, shape, generator=generator)
        made[name] = (torch.rand(shape, generator=generator) if dtype.is_floating_point else whole > 1 if dtype == torch.bool
                      else whole).to(dtype)
    return made


def source(expression: str) -> str:
    return f"def forward({', '.join(TENSORS)}):\n    out = {expression}\n    return (out,)\n"


def inferred(expression: str) -> Shaped:
    return rehearse(check_graph(source(expression), ()), list(TENSORS), list(SHAPES.values()), {}, {}, 1)[0]


def test_examples_are_of_the_list() -> None:
    assert set(EXAMPLES) - {"[]", "opaque"} - set(SIGNS) == set(OPERATORS)
    assert {SIGNS[s] for s in SIGNS if s in EXAMPLES} == set(INFIX)
    for name, calls in EXAMPLES.items():
        assert all(name in call for call in calls) or name in ("[]", "opaque")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_says_what_torch_does(name: str) -> None:
    for call in EXAMPLES[name]:
        out = eval(call, {"torch": torch, "F": torch.nn.functional, "device": "cpu", **make()})
        assert inferred(call) == Shaped(out.dtype, tuple(out.shape)), call


@pytest.mark.parametrize("call", WRONG)
def test_arguments_that_no_operator_gets(call: str) -> None:
    with pytest.raises(ArtifactError, match="RF606"):
        inferred(call)


def test_promotion_is_torchs() -> None:
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
    operands = [(dtype, shape) for dtype in kinds for shape in ((), (2,))]
    for a, x in operands:
        for scalar in (True, 2, 2.5):
            assert promoted(Shaped(a, x), scalar) == torch.result_type(torch.ones(x, dtype=a), scalar)
        for b, y in operands:
            assert promoted(Shaped(a, x), Shaped(b, y)) == torch.result_type(torch.ones(x, dtype=a), torch.ones(y, dtype=b))


def strings(folder: Path) -> str:
    """Every string in the emitter's modules, the constant parts of its templates included."""
    found = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_list_is_what_the_emitter_writes() -> None:
    """Every function that a template of the emitter names is listed; everything listed is named by a template or a rule.
    (Templates that put a name together are held to the list where they are emitted: redfuser/outer/source.py.)"""
    from redfuser.outer import fused, moving, pointwise

    text = strings(ROOT / "redfuser" / "outer")
    written = set(re.findall(r"\b(?:torch|F)\.[a-z]\w*(?=\()", text)) | set(re.findall(r"(?<![\w.])\.[a-z_]\w*(?=\()", text))
    assert written <= set(OPERATORS), written - set(OPERATORS)
    words = set(re.findall(r"\w+", text)) | {w for rules in (pointwise.RULES, moving.RULES) for key in rules for w in key.split(".")}
    words |= {w for value in (*pointwise.UNARY.values(), *pointwise._TENSORS.values()) for w in value.split(".")}
    words |= {f"conv{r}d" for r in (1, 2, 3)}
    assert fused.RULES is pointwise.RULES
    assert not {name for name in OPERATORS if name.split(".")[-1] not in words}
    assert {SIGNS[sign] for sign in (*pointwise._INFIX.values(), "/")} == set(INFIX)


def test_opaque_operators_are_functions() -> None:
    """None writes into an operand, and every one has a shape function or is made of ones that have."""
    for target in OPAQUE:
        _, name, overload = target.split(".")
        schema = getattr(getattr(torch.ops.aten, name), overload)._schema
        assert not schema.is_mutable, target
        assert not any(a.alias_info is not None and a.alias_info.is_write for a in (*schema.arguments, *schema.returns)), target
    for name in ("as_strided", "_reshape_alias", "set_", "resize_", "empty", "empty_strided", "_unsafe_index", "_unsafe_index_put",
                 "_embedding_bag", "embedding_dense_backward", "max_pool2d_with_indices_backward", "nonzero", "_grouped_mm"):
        assert not any(target.split(".")[1] == name for target in OPAQUE), name


def test_a_product_of_eight_bits_is_as_its_scales_and_sizes_say() -> None:
    from redfuser.runtime.operators import opaque_results
    from redfuser.runtime.shapes import Refused

    def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> Shaped:
        return Shaped(dtype, shape)

    eight, name = torch.float8_e4m3fn, "aten._scaled_mm.default"
    a, b, more = shaped(32, 64, dtype=eight), shaped(64, 48, dtype=eight), {"out_dtype": torch.bfloat16}
    out = torch._scaled_mm(torch.ones(32, 64).to(eight), torch.ones(48, 64).to(eight).t(), torch.tensor(1.0), torch.tensor(1.0),
                           out_dtype=torch.bfloat16)
    for scales in ((shaped(), shaped()), (shaped(32, 1), shaped(1, 48))):
        assert opaque_results(name, (a, b, *scales), more) == Shaped(out.dtype, tuple(out.shape))
    rows, columns = shaped(32, 1), shaped(1, 48)
    for wrong in ((a, a, rows, columns), (a, b, shaped(31, 1), columns), (a, b, rows, shaped(48, 1)), (a, b, rows),
                  (a, b, rows, shaped(1, 48, dtype=torch.float64)), (a, b, rows, columns, shaped(47))):
        with pytest.raises(Refused):
            opaque_results(name, wrong, more)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_network_is_as_its_weights_say(kind: str) -> None:
    from redfuser.runtime.operators import opaque_results
    from redfuser.runtime.shapes import Refused

    net = getattr(torch.nn, kind)(6, 4, 2, bidirectional=True, batch_first=True)
    name = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[kind]
    x, state = Shaped(torch.float32, (3, 5, 6)), Shaped(torch.float32, (4, 3, 4))
    weights = [Shaped(w.dtype, tuple(w.shape)) for w in net.parameters()]
    hx = [state, state] if kind == "LSTM" else state
    good = [x, hx, weights, True, 2, 0.0, False, True, True]
    out = opaque_results(f"aten.{name}.input", good, {})
    assert [s.shape for s in out] == [(3, 5, 8), (4, 3, 4), *[(4, 3, 4)] * (kind == "LSTM")]
    for n, wrong in ((0, Shaped(torch.float32, (3, 5, 7))), (0, Shaped(torch.float64, (3, 5, 6))), (1, x), (2, weights[:-1]),
                     (2, [*weights[1:], weights[0]]), (3, False), (4, 1), (6, True), (7, False), (8, False)):
        with pytest.raises(Refused):
            opaque_results(f"aten.{name}.input", [*good[:n], wrong, *good[n + 1:]], {})


def test_a_file_holds_no_other_opaque_call(tmp_path: Path) -> None:
    """A model that keeps an operator which a file may not call runs in the process that made it, and is not written."""
    text = "def forward(x):\n    y = torch.ops.aten.as_strided.default(x, [2], [1])\n    return (y,)\n"
    model = CompiledModel(Graph(text, ("x",), 1), {}, {}, Signature((TensorSpec("x", "float32", (3,)),), (0,), (0,)))
    assert torch.equal(model(torch.arange(3.0)), torch.tensor([0.0, 1.0]))
    with pytest.raises(ArtifactError, match=r"(?s)RF607.*line 2.*aten\.as_strided"):
        model.save(tmp_path / "m.rf")
    assert not list(tmp_path.iterdir())


def test_hostile_graphs() -> None:
    """Those by hand and a few drawn, between guard pages; ``python -m tests.runtime.hostile_graphs 20000`` draws more."""
    done = hostile_graphs.guarded(120, first=7)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


FRESH = '''
import json, os, sys, torch
from redfuser.runtime.model import CompiledModel
from redfuser.runtime.parts import Graph
from redfuser.runtime.signature import Signature, TensorSpec
from redfuser.runtime.check import inputs_of  # imported beforehand, as any process that loads has
sys.path.insert(0, sys.argv[1])
from test_operators import make, source
from operator_examples import EXAMPLES, TENSORS
torch.set_num_threads(1)
tensors = make()
inputs = tuple(TensorSpec(n, str(d).removeprefix("torch."), s) for n, (d, s) in TENSORS.items())
signature = Signature(inputs, tuple(range(len(inputs))), (0,))
failed = {}
for name, calls in EXAMPLES.items():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model = CompiledModel(Graph(source(calls[0]), tuple(TENSORS), 1), {}, {}, signature)
            model(*tensors.values())
            os.write(writer, b"ran")
        except BaseException as error:
            os.write(writer, repr(error)[:300].encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 400).decode()
    os.close(reader)
    os.waitpid(child, 0)
    if text != "ran":
        failed[name] = text
print(json.dumps(failed))
'''


def test_every_operator_as_the_first_call_of_a_process() -> None:
    """The graph's frame gives torch's native code the importer it asks for on first use."""
    done = subprocess.run([sys.executable, "-c", FRESH, str(Path(__file__).parent)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
