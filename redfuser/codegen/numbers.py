"""Numbers that a kernel before has written and that steer this one (:mod:`redfuser.tensorize.ir.spans`), by name.

TileLang asks at each element whether a place that memory decides is inside of its tensor, reads again what decides it, and
never takes two elements at once. A number with a name, of which it is told where it lies, is read once and not asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from redfuser.acrf.expr import Cast, Expr, Index, Load, walk
from redfuser.tensorize.ir.effects import Names, bodies, slices
from redfuser.tensorize.ir.flight import Fetch, Send
from redfuser.tensorize.ir.nodes import For, Parallel, TileKernel, TileStmt


class Numbers:
    """The names of such numbers while a kernel is printed: ``names`` has those that are known where the printer is."""

    def __init__(self, kernel: TileKernel) -> None:
        self.spans = {p.name: p.span for p in kernel.params if p.span is not None and not p.out}
        self.around = {*(v for v, _ in kernel.grid), *(n for n, _ in kernel.lets)}
        self.fresh = Names(kernel).fresh
        self.called: dict[Load, str] = {}
        self.names: dict[Load, str] = {}

    @contextmanager
    def inside(self, body: tuple[TileStmt, ...], var: str | None = None) -> Iterator[list[tuple[str, Load]]]:
        """A loop over ``var``, or a role, for as long as it is printed: the numbers that have a name in it and had none around
        it, which are to be read first."""
        around, known = self.around, self.names
        self.around = around | ({var} if var else set())
        found = dict.fromkeys(x for x in _places(body, var is not None) if x.tensor in self.spans and x not in known and
                              {i.axis for i in walk(x) if isinstance(i, Index)} <= self.around) if self.spans else {}
        for x in found:
            if x not in self.called:
                self.called[x] = self.fresh(f"{x.tensor}_{var or 'here'}")
        self.names = known | {x: self.called[x] for x in found}
        yield [(self.names[x], x) for x in found]
        self.around, self.names = around, known


def _places(body: Iterable[TileStmt], loops: bool) -> Iterator[Load]:
    """What is read to know where a tile or an element lies. loops: in loops of the body as well."""
    for s in body:
        parts = (s.src, s.dst) if isinstance(s, (Fetch, Send)) else slices(s)
        exprs: list[Expr] = [d.start for part in parts for d in part.dims]
        if isinstance(s, For):
            exprs += [s.start, s.stop]
        if isinstance(s, Parallel):
            read = [x for a in s.body for x in walk(a.expr) if isinstance(x, Load)]
            exprs += [e for ix in (*(x.indices for x in read), *(a.indices for a in s.body)) for e in ix]
        places = [x.arg for e in exprs for x in walk(e) if isinstance(x, Cast) and x.dtype == "i64"]
        yield from (x for x in places if isinstance(x, Load))
        if loops or not isinstance(s, For):
            for inner in bodies(s):
                yield from _places(inner, loops)
