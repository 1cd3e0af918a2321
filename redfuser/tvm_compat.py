"""The one adapter for apache-tvm names that change between releases (written for 0.25.0.post1).

0.25 renamed ``tvm.tir`` to ``tvm.tirx`` (IR) and ``tvm.s_tir`` (schedules); 0.26 renames struct infos to types and
``out_sinfo`` to ``out_ty``. Everything else in RedFuser takes those names from here, so a move to another release is an
edit of this file.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from redfuser.two_tvms import before_apache_tvm

os.environ.setdefault("TVM_NUM_THREADS", "2")
before_apache_tvm()
_DISCO, _BACKENDS = "tvm.runtime.disco", "TVM_DEVICE_BACKEND_AUTOLOAD"
"""What TVM goes without where it cannot be imported, and its setting that leaves out what it knows of devices. Both ask the
library for classes and operators that it lacks, and the first such question makes a backtrace that nobody sees: half of what
importing TVM took. Kernels for devices are TileLang's; a process that wants TVM's own imports it before."""
sys.modules.setdefault(_DISCO, None)  # type: ignore[arg-type]
_asked = os.environ.get(_BACKENDS)
os.environ[_BACKENDS] = _asked or "0"

import tvm

if _asked is None:
    del os.environ[_BACKENDS]
if sys.modules[_DISCO] is None:
    del sys.modules[_DISCO]

from tvm import ir, relax, s_tir, tirx
from tvm import te as te
from tvm import topi as topi
from tvm.relax import TensorStructInfo, TupleStructInfo
from tvm_ffi import structural_equal


def tensor_info(shape: Sequence[int], dtype: str) -> Any:
    """The struct info of a tensor."""
    return TensorStructInfo([int(s) for s in shape], dtype)


def call_dps_packed(name: str, args: Iterable[Any], out: Any) -> Any:
    """A call of a destination-passing packed function; ``out`` is one tensor info or a list of them."""
    return relax.op.call_dps_packed(name, relax.Tuple(list(args)), out_sinfo=out)


def shape_of(expr: Any) -> tuple[int, ...]:
    """The static shape of a tensor expression; raises ``ValueError`` where a dimension is not a literal."""
    shape = expr.struct_info.shape
    if shape is None:
        raise ValueError(f"no known shape: {expr}")
    dims = []
    for dim in getattr(shape, "values", shape):
        if not isinstance(dim, tirx.IntImm):
            raise ValueError(f"dimension {dim} is not static")
        dims.append(int(dim.value))
    return tuple(dims)


def is_static(info: Any) -> bool:
    """Whether every dimension of a tensor info (of every field, for a tuple) is a literal."""
    if isinstance(info, TupleStructInfo):
        return all(is_static(f) for f in info.fields)
    if not isinstance(info, TensorStructInfo) or info.shape is None:
        return False
    return all(isinstance(d, tirx.IntImm) for d in getattr(info.shape, "values", info.shape))


def dtype_of(expr: Any) -> str:
    """The TVM dtype name of a tensor expression (``float16``, ``float8_e4m3fn``, ``bool``)."""
    return str(expr.struct_info.dtype)


def bytes_of(info: Any) -> int:
    """Bytes of a tensor, or of all tensors of a tuple, from what is known of it; 0 where its shape is not."""
    if isinstance(info, TupleStructInfo):
        return sum(map(bytes_of, info.fields))
    if not isinstance(info, TensorStructInfo) or not is_static(info):
        return 0
    bits = int("".join(c for c in str(info.dtype).split("_")[0] if c.isdigit()) or 8)
    return prod(int(n) for n in info.shape) * max(8, bits) // 8


def op_name(expr: Any) -> str:
    """``matmul``, ``nn.softmax`` for a call of a Relax op; empty for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op):
        return str(expr.op.name).removeprefix("relax.")
    return ""


def variables(expr: Any) -> list[str]:
    """Names of the variables that an expression reads, in order and as often as it does: ``x * x`` reads x twice."""
    if isinstance(expr, relax.Var):
        return [expr.name_hint]
    parts = (expr.fields if isinstance(expr, relax.Tuple) else expr.args if isinstance(expr, relax.Call) else
             [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else ())
    return [name for part in parts for name in variables(part)]


def results(main: Any) -> list[Any]:
    """What a function in the normal form returns, one or several."""
    body = main.body.body
    return list(body.fields) if isinstance(body, relax.Tuple) else [body]


def prim_int(expr: Any) -> int:
    """The integer in a ``PrimValue`` or a TIR literal."""
    value = getattr(expr, "value", expr)
    return int(getattr(value, "value", value))


def permute_axes(call: Any) -> tuple[int, ...]:
    """The axes of a ``permute_dims`` call, with its default (reverse) written out and negatives resolved."""
    rank = len(shape_of(call.args[0]))
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(a) % rank for a in call.attrs.axes)


def same(a: Any, b: Any) -> bool:
    """Are two pieces of IR (attributes, struct infos, lists of them) equal in structure?"""
    return bool(structural_equal(a, b))


def bindings(func: Any) -> list[Any]:
    """The bindings of a function that is one sequence of blocks, in order."""
    return [b for block in func.body.blocks for b in block.bindings]


def packed_symbols(mod: Any) -> set[str]:
    """Functions outside of a module that its ``main`` calls."""
    return {str(b.value.args[0].global_symbol) for b in bindings(mod["main"]) if op_name(b.value) == "call_dps_packed"}


def without_params(mod: Any, idle: set[str]) -> Any:
    """``main`` without parameters that nothing uses."""
    func = mod["main"]
    params = [p for p in func.params if p.name_hint not in idle]
    slim = relax.Function(params, func.body, func.ret_struct_info, func.is_pure, func.attrs)
    blocks = relax.BlockBuilder()
    blocks.add_func(slim, "main")
    return blocks.get()


def parse_prim_func(text: str) -> Any:
    """A PrimFunc from TVMScript text in which ``T`` is TVM's scalar dialect.

    TVM's parser, but for its evaluation of expressions: that compiles every operation of one by itself, and takes most of the
    time. Here a whole expression is one piece of Python, whose comparisons are TVM's as they are in its own evaluator; what
    is assigned is seen by nothing else, so its tree is left out."""
    from tvm.script import tirx as T
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.parser._core import Parser, doc
    from tvm.script.parser.core.diagnostics import Source

    lines = text.encode().splitlines()  # offsets in a line are of bytes

    class Statements(Source):  # type: ignore[misc]
        def as_ast(self) -> Any:
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and node.value.lineno == node.value.end_lineno:
                    node.value = ast.copy_location(ast.Constant(0), node.value)
            return doc.to_doc(tree)

    class Whole(Parser):  # type: ignore[misc]
        def get_dispatch_token(self, node: Any) -> str:
            return "tirx"

        def eval_expr(self, node: Any, extra_vars: Any = None) -> Any:
            if extra_vars or node.lineno != node.end_lineno:
                return super().eval_expr(node, extra_vars)
            code = _expression(lines[node.lineno - 1][node.col_offset:node.end_col_offset].decode())
            return eval(code, {**self.var_table.get(), "__compared": _compared})

    parser = Whole(Statements(text), {})
    with IRBuilder() as builder:
        parser.parse({"T": T})
    function = builder.get()
    tirx.analysis.verify_tirx_well_formed(tvm.IRModule.from_expr(function))
    return function


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """The code of an expression; its comparisons are calls of :func:`_compared`."""

    class Calls(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> ast.AST:
            self.generic_visit(node)
            (name,), (right,) = node.ops, node.comparators
            called = ast.Name("__compared", ast.Load())
            return ast.Call(called, [ast.Constant(type(name).__name__), node.left, right], [])

    tree = Calls().visit(ast.parse(text, mode="eval"))
    return compile(ast.fix_missing_locations(tree), "<expression>", "eval")


def _compared(name: str, a: Any, b: Any) -> Any:
    from tvm.script.parser._core import doc
    from tvm.script.parser.core.evaluator import _eval_op

    return _eval_op(getattr(doc, name)(), [a, b])


def build_scalar(mod: Any, mcpu: str = "", fast: bool = True) -> Any:
    """Compile scalar PrimFuncs for this machine's kind of processor with LLVM. fast: the code, rather than the compiler.

    The passes of TVM's own pipeline that concern threads, shared memory and pipelines are left out (they take most of its
    time), and so is the rewrite of ``Select`` into branches: the caller has made unsafe ones lazy."""
    options = {**({"mcpu": mcpu} if mcpu else {}), **({} if fast else {"opt-level": 0})}
    target = tvm.target.Target({"kind": "llvm", **options})
    t, s = tirx.transform, s_tir.transform
    passes = [t.BindTarget(target.with_host(target)), s.LowerInitBlock(), s.ConvertBlocksToOpaque(), s.LowerOpaqueBlock(),
              t.FlattenBuffer(), t.BF16ComputeLegalize(), t.VectorizeLoop(), t.AnnotateEntryFunc(), t.SplitHostDevice(),
              t.MakePackedAPI(), t.BF16StorageLegalize(), t.LowerTVMBuiltin(), t.LowerIntrin()]
    lowered = ir.transform.Sequential(passes)(mod)
    from tvm.tirx.build import codegen_build

    return tvm.runtime.Executable(codegen_build(lowered, target))
