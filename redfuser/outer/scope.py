"""What a rule that spells one Relax call in torch may ask about it, and how operands are written."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from typing import Any, Protocol

from redfuser.tvm_compat import dtype_of, relax, shape_of

HALF = frozenset({"float16", "bfloat16"})
_RESERVED = frozenset({"torch", "F", "device", "forward"})


class Scope(Protocol):
    """The view of the graph that rules have. Operand text is a name or a literal, so it never needs parentheses."""

    def text(self, expr: Any) -> str:
        """``expr`` as an operand: a name, or a literal for a scalar constant."""

    def tensor(self, expr: Any) -> str:
        """``expr`` as an operand that has to be a tensor: a scalar constant gets a name."""

    def value(self, expr: Any) -> Any:
        """The call a variable is bound to; ``expr`` itself for parameters, constants and fused results."""

    def once(self, expr: Any) -> bool:
        """Whether ``expr`` is a variable that nothing else reads, so that a rule may absorb its call."""

    def device(self) -> str:
        """Text of the device the model runs on."""

    def laid(self, expr: Any) -> bool:
        """Whether ``expr`` is a weight that the library wants with channels last."""

    def operator(self, expr: Any) -> str:
        """The model's operator that a variable was imported for, empty where that is not known."""


def scalar(expr: Any) -> float | int | bool | None:
    """The value of a rank-0 constant or a primitive value, else None."""
    if isinstance(expr, relax.Constant) and not shape_of(expr):
        value = expr.data.numpy().item() if dtype_of(expr) != "bfloat16" else _bfloat16(expr)
        return value
    return None


def _bfloat16(expr: Any) -> float:
    import torch

    return float(torch.from_dlpack(expr.data).item())


def literal(value: float | int | bool, dtype: str) -> str:
    """A Python literal. A float32 is written as the shortest decimal that rounds to it, other floats exactly."""
    if isinstance(value, bool) or not dtype.startswith(("float", "bfloat")):
        return repr(value)
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if dtype == "float32":
        import numpy as np

        short = float(str(np.float32(value)))
        return repr(short if abs(short) <= float(np.finfo(np.float32).max) else float(value))
    return repr(float(value))


def shape_text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def torch_dtype(dtype: str) -> str:
    return f"torch.{dtype}"


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def python_name(name: str, taken: Collection[str] = ()) -> str:
    """``name`` as a Python identifier that is free: not a keyword, not a name the generated module uses, not taken."""
    name = re.sub(r"\W+", "_", name).strip("_") or "v"
    if name[0].isdigit():
        name = f"v{name}"
    if keyword.iskeyword(name) or name in _RESERVED:
        name += "_"
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}_{n}", n + 1
    return candidate
