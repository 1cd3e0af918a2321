"""What an outer graph may contain, checked on its syntax before anything else is done with it.

A graph is one function of straight-line tensor code::

    module    ::= "def forward(" NAME {"," NAME} "):" {statement} "return" "(" expr {"," expr} ")"
    statement ::= NAME {"," NAME} "=" expr | "del" NAME {"," NAME}
    expr      ::= NAME | literal | call | expr "." ("values" | "indices") | expr "[" index {"," index} "]"
                | expr INFIX expr | "(" expr {"," expr} ")" | "[" expr {"," expr} "]"
    call      ::= KERNEL "(" ... ")" | OPERATOR "(" ... ")" | expr "." METHOD "(" ... ")" | 'float("inf")'
    literal   ::= an integer of 64 bits, a float, True, False, None, a short string, or a dtype (torch.float16)

OPERATOR, METHOD and INFIX are those of :mod:`redfuser.runtime.operators`, nothing else: exactly what
:mod:`redfuser.outer` writes. A graph from a file is then rehearsed on shapes (:mod:`redfuser.runtime.rehearsal`), which
checks every argument. So its text can compute, within bounds, and nothing else. (The binaries beside it are native code:
an artifact as a whole is trusted like a wheel.)
"""

from __future__ import annotations

import ast
import keyword
import warnings
from collections.abc import Collection

import torch

from redfuser.errors import ArtifactError
from redfuser.runtime.operators import INFIX, OPAQUE, OPERATORS, OWN, PROPERTIES

MAX_SOURCE_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_WORD = 256
RESERVED = frozenset({"torch", "F", "device", "float", "forward"})
"""Names with a meaning of their own."""

_INFINITE = frozenset({"inf", "-inf", "nan"})
_OPAQUE_WORDS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d", "strided")


def is_name(text: object) -> bool:
    """Whether a graph may call a constant, a kernel or an input so."""
    return isinstance(text, str) and text.isidentifier() and text.isascii() and len(text) <= MAX_WORD and \
        not keyword.iskeyword(text) and not text.startswith("__") and text not in RESERVED


def check_graph(source: str, names: Collection[str], *, any_operator: bool = False) -> ast.Module:
    """Parse ``source`` and hold it to the grammar; ``names`` are the constants and kernels it may use. ``any_operator``: the
    text was written in this process, and opaque calls may be of operators that a file's may not.

    Raises :class:`ArtifactError` RF606, which names the line and what is wrong with it."""
    if len(source) > MAX_SOURCE_BYTES:
        raise refuse(0, "it is larger than any graph")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on style are not for whoever loads a file
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise refuse(getattr(error, "lineno", 0) or 0, f"it is not Python: {error}") from error
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != "forward":
        raise refuse(1, "it is not one function named forward")
    _Grammar(set(names), any_operator).function(tree.body[0])
    return tree


def refuse(line: int, why: str) -> ArtifactError:
    return ArtifactError("RF606", "the graph is refused", where=f"line {line}", why=why,
                         help="do not use this file unless you know where it is from; compile the model again")


def path_of(node: ast.expr) -> tuple[str, ...]:
    """``torch.nn.functional.linear`` as its parts; empty when it does not begin with a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()


def opaque_target(path: tuple[str, ...]) -> str:
    """``aten.histc.default`` of ``torch.ops.aten.histc.default``, or nothing."""
    return ".".join(path[2:]) if len(path) == 5 and path[:2] == ("torch", "ops") else ""


class _Grammar:
    def __init__(self, names: set[str], any_operator: bool) -> None:
        self.given, self.known, self.any_operator = names, set(names), any_operator

    def function(self, node: ast.FunctionDef) -> None:
        args = node.args
        if node.decorator_list or args.vararg or args.kwarg or args.defaults or args.kw_defaults or args.posonlyargs or \
                args.kwonlyargs or node.returns or any(a.annotation for a in args.args) or node.type_comment:
            raise refuse(node.lineno, "forward takes plain parameters")
        for parameter in args.args:
            if not is_name(parameter.arg) or parameter.arg in self.given:
                raise refuse(node.lineno, f"parameter {parameter.arg} hides another name")
            self.known.add(parameter.arg)
        *statements, last = node.body
        for statement in statements:
            self.statement(statement)
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            raise refuse(last.lineno, "the last statement does not return a tuple")
        self.expression(last.value, 0)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.expression(node.value, 0)
            target = node.targets[0]
            for leaf in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(leaf, ast.Name) or not is_name(leaf.id) or leaf.id in self.given:
                    raise refuse(node.lineno, "only results get names, and none that means something else")
                self.known.add(leaf.id)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if not isinstance(target, ast.Name) or target.id not in self.known or target.id in self.given:
                    raise refuse(node.lineno, "only results can be deleted")
                self.known.discard(target.id)
        else:
            raise refuse(node.lineno, f"{type(node).__name__} is not part of a graph")

    def expression(self, node: ast.expr, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise refuse(node.lineno, "an expression is nested too deeply")
        match node:
            case ast.Name():
                if node.id not in self.known and node.id != "device":
                    raise refuse(node.lineno, f"unknown name {node.id}")
                return
            case ast.Constant():
                self.literal(node)
                return
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                children: list[ast.expr] = [node.operand]
            case ast.BinOp():
                self.infix(node, node.op)
                children = [node.left, node.right]
            case ast.Compare(ops=[op]):
                self.infix(node, op)
                children = [node.left, node.comparators[0]]
            case ast.Tuple() | ast.List():
                children = node.elts
            case ast.Subscript():
                children = [node.value]
                for index in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                    children += [v for v in (index.lower, index.upper, index.step) if v is not None] \
                        if isinstance(index, ast.Slice) else [index]
            case ast.Attribute():
                children = self.attribute(node)
            case ast.Call():
                children = self.call(node)
            case _:
                raise refuse(node.lineno, f"{type(node).__name__} is not part of a graph")
        for child in children:
            self.expression(child, depth + 1)

    def literal(self, node: ast.Constant) -> None:
        value = node.value
        if value is None or isinstance(value, (bool, float)):
            return
        if not (isinstance(value, int) and abs(value) <= 1 << 63) and \
                not (isinstance(value, str) and len(value) <= MAX_WORD and value.isascii()):
            raise refuse(node.lineno, "a literal that no operator takes")

    def infix(self, node: ast.expr, op: ast.AST) -> None:
        if type(op).__name__ not in INFIX:
            raise refuse(node.lineno, f"{type(op).__name__} is not part of a graph")

    def attribute(self, node: ast.Attribute) -> list[ast.expr]:
        path = path_of(node)
        if path and path[0] in ("torch", "F"):
            found = getattr(torch, path[1], None) if path[0] == "torch" and len(path) == 2 else None
            if not isinstance(found, torch.dtype) and (path[0] != "torch" or path[1:] not in [(w,) for w in _OPAQUE_WORDS]):
                raise refuse(node.lineno, f"{'.'.join(path)} is not a dtype")
            return []
        if node.attr not in PROPERTIES:
            raise refuse(node.lineno, f".{node.attr} is not a property of a result")
        return [node.value]

    def call(self, node: ast.Call) -> list[ast.expr]:
        if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            raise refuse(node.lineno, "* is not part of a graph")
        children = [*node.args, *(k.value for k in node.keywords)]
        path = path_of(node.func)
        if path and path[0] in ("torch", "F"):
            target = opaque_target(path)
            allowed = (self.any_operator or target in OPAQUE or target in OWN) if target else ".".join(path) in OPERATORS
            if not allowed or any(part.startswith("__") and not target for part in path):
                raise refuse(node.lineno, f"{'.'.join(path)} is not an operator of a graph")
            return children
        if isinstance(node.func, ast.Name):
            if node.func.id == "float":
                if len(children) != 1 or not isinstance(children[0], ast.Constant) or children[0].value not in _INFINITE:
                    raise refuse(node.lineno, "float() of a word")
            elif node.func.id not in self.given:
                raise refuse(node.lineno, f"unknown function {node.func.id}")
            return children
        if isinstance(node.func, ast.Attribute) and f".{node.func.attr}" in OPERATORS:
            return [node.func.value, *children]
        name = f".{node.func.attr}()" if isinstance(node.func, ast.Attribute) else type(node.func).__name__
        raise refuse(node.lineno, f"{name} is not an operator of a graph")
