"""Converters from ATen overloads to Relax, one small function each; :data:`CONVERTERS` is the whole table.

A converter gets every argument of the overload's schema by name, tensors as Relax expressions, and returns an expression
(a tuple of them for an operator with several results). It raises :class:`Decline` for any form of arguments that it does
not compute exactly, and the call stays an opaque torch call.
"""

from redfuser.frontend.aten import (
    attention,
    elementwise,
    functions,
    indexing,
    linalg,
    logic,
    norms,
    reductions,
    shapes,
    windows,
    writes,
)
from redfuser.frontend.aten.context import CONVERTERS, Context, Decline

__all__ = ["CONVERTERS", "Context", "Decline", "attention", "elementwise", "functions", "indexing", "linalg", "logic",
           "norms", "reductions", "shapes", "windows", "writes"]
