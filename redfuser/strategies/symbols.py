"""Programs of many sizes: their symbolic extents as numbers, and what is made of some numbers as one thing for all of them.

Whatever lowers a program works on numbers, a static program never comes here, and what is decided for one size is decided for
all of them or there is none for all: RF492 says in what two sizes differ."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from redfuser.acrf.cascade import Extent, Tensor
from redfuser.acrf.state import Fused
from redfuser.errors import InputError, LoweringError
from redfuser.fitted import Apart, Unclear, merged, samples
from redfuser.sizes import Binding, Number, Quotient, Size, Symbol, Term
from redfuser.strategies import tir
from redfuser.strategies.program import Program
from redfuser.strategies.realise import realise

T = TypeVar("T")
BEYOND = (1, 2, 4)
"""How far beyond their ranges symbols are sampled, one after another, until nothing else than numbers differs: what is decided
for long rows is decided for all."""
_PARAMETER = re.compile(r'(\w+): T\.Buffer\((\([^"]*\)), ("\w+"), align=(\d+)\)(?:, )?')


def at(program: Program, binding: Binding) -> Program:
    """A segment program where its symbolic extents are numbers."""
    return realise(fused_at(program.fused, binding), program.strategy, program.splits, program.segment)


def fused_at(fused: Fused, binding: Binding) -> Fused:
    """A fusion where its symbolic extents are numbers."""
    def extent(e: Extent) -> Extent:
        return binding[e] if isinstance(e, str) and e in binding else e

    c = fused.cascade
    return replace(fused, cascade=replace(
        c, inputs=tuple(replace(t, shape=tuple(map(extent, t.shape))) for t in c.inputs),
        axes=tuple(replace(a, extent=extent(a.extent)) for a in c.axes)))


def usual(fused: Fused, symbols: Sequence[Symbol]) -> Fused:
    """A fusion of the size for which choices are made."""
    return fused_at(fused, {s.name: s.usual for s in symbols}) if symbols else fused


def declared(fused: Fused, symbols: Sequence[Symbol]) -> None:
    """Raises InputError RF520 where the symbols are not those of the fusion's extents."""
    c = fused.cascade
    named = {e for e in (*(a.extent for a in c.axes), *(n for t in c.inputs for n in t.shape)) if isinstance(e, str)}
    given = [s.name for s in symbols]
    if named != set(given) or len(set(given)) != len(given):
        raise InputError("RF520", f"{c.name} has the symbols {', '.join(sorted(named)) or 'none'}, given: "
                         f"{', '.join(given) or 'none'}", help="a range for each symbol of the shapes, and for no other")


def one_of(name: str, symbols: tuple[Symbol, ...], make: Callable[[Binding], T],
           merge: Callable[[Sequence[T], Sequence[Binding]], T]) -> T:
    """What ``make`` gives of every number of the symbols. Raises LoweringError RF492 where that is not one thing."""
    for beyond in BEYOND:
        made: dict[tuple[tuple[str, int], ...], T] = {}
        unclear: frozenset[str] = frozenset()
        while True:
            found = samples(symbols, beyond, unclear)
            for b in found:
                key = tuple(b.items())
                if key not in made:
                    made[key] = make(b)
            words = {"T", "make", *re.findall(r"\w+", str(made[tuple(found[0].items())]))}
            if clash := [s.name for s in symbols if s.name in words or keyword.iskeyword(s.name)]:
                raise LoweringError("RF520", f"the symbol {clash[0]} has the name of something else in {name}",
                                    help="call it something else")
            try:
                return merge([made[tuple(b.items())] for b in found], found)
            except Apart as error:
                last = error
            if not isinstance(last, Unclear) or last.symbol in unclear:
                break
            unclear |= {last.symbol}
    raise LoweringError("RF492", f"{name} has no one program for all sizes of {' and '.join(s.name for s in symbols)}",
                        why=str(last), help="compile once per shape")


def entry_script(program: Program, symbols: tuple[Symbol, ...], name: str, lanes: int = 1, threads: bool = False) -> str:
    """The TVMScript of :func:`redfuser.strategies.tir.entry_script`, its symbols variables that the tensors' shapes bind.
    Raises LoweringError RF492 as :func:`one_of`."""
    if not symbols:
        return tir.entry_script(program, name, lanes, threads)
    text = one_of(program.fused.cascade.name, symbols,
                  lambda b: tir.entry_script(at(program, b), name, lanes, threads, program), merged)
    head = next(line for line in text.splitlines() if line.startswith("def "))
    found = _PARAMETER.findall(head)
    lines = [f"def {name}({', '.join(f'{p}_handle: T.handle' for p, *_ in found)}):",
             *(f"    {s.name} = T.int32()" for s in symbols),
             *(f"    {p} = T.match_buffer({p}_handle, {shape}, {dtype}, align={align})" for p, shape, dtype, align in found)]
    return text.replace(head, "\n".join(lines))


def extent(e: Extent) -> Number:
    """An extent as a number, or as the size that is one symbol."""
    return e if isinstance(e, int) else Size((Term(1, (Quotient(e),)),))


def shape(t: Tensor) -> tuple[Number, ...]:
    return tuple(map(extent, t.shape))
