"""A problem's source with smaller sizes: the same program, for a machine a thousand times slower than it was written for.

Whole numbers in assignments at the top of the module are divided by their smallest prime factors until they are within a limit,
so that what divided another number still does. Nothing inside a function or a class is touched.
"""

from __future__ import annotations

import ast

LEAST = 8
"""No number is divided to below this."""


def shrunk(source: str, limit: int, batch: int | None) -> str:
    """``source`` with the numbers of its top level at most ``limit``, those of names with "batch" in them at most ``batch``,
    where that is a number."""
    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            named = any("batch" in ast.unparse(t).lower() for t in targets)
            statement.value = _Smaller(limit, batch if named else None).visit(statement.value)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Smaller(ast.NodeTransformer):
    def __init__(self, limit: int, batch: int | None) -> None:
        self.limit, self.batch = limit, batch

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            return node
        return ast.Constant(min(node.value, self.batch) if self.batch is not None else smaller(node.value, self.limit))


def smaller(number: int, limit: int) -> int:
    """``number`` divided by its smallest prime factors while it is above ``limit``: 768 --> 96 for 128, 8205 --> 547."""
    while number > limit:
        factor = next((p for p in range(2, int(number ** 0.5) + 1) if number % p == 0), number)
        if number // factor < LEAST:
            break
        number //= factor
    return number
