"""The untyped tree of a cascade's text: what :mod:`redfuser.acrf.syntax` reads and :mod:`redfuser.acrf.text` gives meaning.

Every node knows its place (``at``, an offset in the source), for errors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """``kind``: number, bool, name, subscript, call or op; ``name``: the number's text, the name read, subscripted or
    called, or the operation. ``height``: of the tree below, 0 for a leaf."""

    kind: str
    name: str
    at: int
    args: tuple[Node, ...] = ()
    height: int = 0


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Result:
    """The left side ``name[axes]``; axes None where the text leaves them out."""

    name: Name
    axes: tuple[Name, ...] | None


@dataclass(frozen=True, slots=True)
class Statement:
    """``results: dtype = reducer(k)[over] body``; without a reducer, a value per point. running: ``reducer[..over]``."""

    results: tuple[Result, ...]
    dtype: str | None
    reducer: str | None
    k: int
    over: Name | None
    body: Node
    at: int
    running: bool = False


@dataclass(frozen=True, slots=True)
class Declaration:
    """An input tensor."""

    name: Name
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One cascade."""

    name: str
    inputs: tuple[Declaration, ...]
    over: Name
    where: tuple[tuple[Name, int | str], ...]
    stmts: tuple[Statement, ...]
    returns: tuple[Name, ...] | None
    at: int
