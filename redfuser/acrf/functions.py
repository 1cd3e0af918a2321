"""The functions of numbers that expressions have beyond arithmetic and roundings, a row each. Whatever knows functions by name
asks here which there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """bounded: numbers of moderate size, of any. branches: a GPU's takes several ways, by its arguments."""

    arity: int = 1
    bounded: bool = False
    branches: bool = False


TABLE = {
    "sqrt": Function(), "rsqrt": Function(), "exp": Function(bounded=True), "exp2": Function(bounded=True),
    "log": Function(), "log2": Function(), "tanh": Function(bounded=True), "sigmoid": Function(bounded=True),
    "sin": Function(), "cos": Function(), "atan2": Function(2, bounded=True, branches=True),
    "erf": Function(bounded=True), "erfc": Function(bounded=True, branches=True), "lgamma": Function(branches=True),
}
DEAR = frozenset(TABLE) | {"pow", "div"}
"""What is not computed again for every reader, and is kept where it is one value per row."""
