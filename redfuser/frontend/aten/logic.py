"""Comparisons, truth values and bits."""

from __future__ import annotations

from typing import Any

from redfuser.frontend.aten.context import Context, Decline, converts
from redfuser.frontend.aten.elementwise import operand, promoted
from redfuser.tvm_compat import relax

op = relax.op


def _compare(f: Any) -> Any:
    def convert(c: Context, self: Any, other: Any) -> Any:
        dtype = promoted(self, other)
        if dtype == "bool":
            dtype = "int32"  # comparing truth values
        if dtype.startswith("float8"):
            raise Decline("comparison of float8")
        return c.emit(f(operand(c, self, dtype), operand(c, other, dtype)))

    return convert


for _name, _f in {"eq": op.equal, "ne": op.not_equal, "lt": op.less, "le": op.less_equal, "gt": op.greater,
                  "ge": op.greater_equal}.items():
    converts(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_compare(_f))


def _alike(f: Any, of_truths: Any = None) -> Any:
    """Both operands in the dtype of the result. of_truths: instead of ``f``, where that is bool."""

    def convert(c: Context, self: Any, other: Any) -> Any:
        g = of_truths if of_truths is not None and c.dtype == "bool" else f
        return c.emit(g(operand(c, self, c.dtype), operand(c, other, c.dtype)))

    return convert


for _name, _truth, _bits in (("and", op.logical_and, op.bitwise_and), ("or", op.logical_or, op.bitwise_or),
                             ("xor", op.logical_xor, op.bitwise_xor)):
    converts(f"aten.logical_{_name}.default")(_alike(_truth))
    converts(f"aten.bitwise_{_name}.Tensor", f"aten.bitwise_{_name}.Scalar", f"aten.__{_name}__.Tensor",
             f"aten.__{_name}__.Scalar")(_alike(_bits, _truth))

for _name, _f in {"left": op.left_shift, "right": op.right_shift}.items():
    converts(f"aten.__{_name[0]}shift__.Scalar", f"aten.__{_name[0]}shift__.Tensor", f"aten.bitwise_{_name}_shift.Tensor",
             f"aten.bitwise_{_name}_shift.Tensor_Scalar")(_alike(_f))


@converts("aten.logical_not.default")
def logical_not(c: Context, self: Any) -> Any:
    return c.emit(op.logical_not(operand(c, self, "bool")))


@converts("aten.bitwise_not.default")
def bitwise_not(c: Context, self: Any) -> Any:
    return c.emit(op.logical_not(self) if c.dtype == "bool" else op.bitwise_not(self))
