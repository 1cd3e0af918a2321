"""Sums of rows that threads keep to themselves until somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redfuser.acrf.expr import Expr, Index, Load, Op, map_children, walk
from redfuser.target import Target
from redfuser.tensorize.ir.effects import Names, every, reads, writes
from redfuser.tensorize.ir.nodes import Assign, Fill, For, Parallel, ReduceTile, TileKernel, TileStmt
from redfuser.tensorize.ir.parts import LANES, RUN, Buffer
from redfuser.tensorize.model.layout import layouts


@dataclass(frozen=True, slots=True)
class SumByLane:
    """A row's total that the loop only adds to is kept in parts, one of each thread that holds elements of the row::

        fill t 0.0                                   fill t_lanes 0.0
        for k in 0 .. 8:                             for k in 0 .. 8:
          reduce sum w -> part clear                   reduce sum w -> part_lanes by lane clear
          parallel i < 128:                   -->      parallel i < 128, lane < 4:
            t[i] = t[i] * c[i] + part[i]                 t_lanes[i, lane] = t_lanes[i, lane] * c[i] + part_lanes[i, lane]
        ... t[i] ...                                 reduce sum t_lanes -> t clear
                                                     ... t[i] ...

    Threads then exchange nothing in the loop. Requires a total that starts at zero, is a sum of itself, times a factor of the
    row, and of the step's part, and is read by nothing else in the loop; ``w`` laid out as a product's result. Every element
    goes through as many additions as before; which two are the last changes, as from one tile shape to another."""

    target: Target

    def __call__(self, kernel: TileKernel) -> TileKernel:
        for at, loop in enumerate(kernel.body):
            if not isinstance(loop, For):
                continue
            for s in loop.body:
                if isinstance(s, ReduceTile) and (total := self._total(kernel, loop, s)):
                    return self(_by_lane(kernel, at, s, total))
        return kernel

    def _total(self, kernel: TileKernel, loop: For, s: ReduceTile) -> str:
        """The total that a reduction is part of, where it may be kept by lane; otherwise empty."""
        spread, shapes = layouts(kernel, self.target), {b.name: b.shape for b in kernel.buffers}
        if s.op != "sum" or not s.clear or s.lanes or s.src not in spread or shapes[s.src][-1] % (LANES * RUN) or (
                2 * shapes[s.src][0] != kernel.threads):  # more than 64 rows a warp group are laid out otherwise
            return ""
        if (at := spread[s.src]).across != LANES or at.far or not at.fixed:
            return ""
        users = [k for k in every(kernel.body) if s.dst in reads(k) | writes(k) and k is not s and k is not loop]
        if len(users) != 1 or not isinstance(users[0], Parallel) or users[0] not in loop.body:
            return ""
        added = [a for a in users[0].body if s.dst in _loaded(a.expr)]
        total = added[0].target if len(added) == 1 else ""
        inside = [k for k in every(loop.body) if total in reads(k) | writes(k)]
        before = [k for k in kernel.body[:kernel.body.index(loop)] if total in reads(k) | writes(k)]
        starts = [k for k in before if isinstance(k, Fill) and k.value.value == 0]
        alone = inside == users and before == starts and len(starts) == 1 and sum(
            total in _loaded(a.expr) or a.target == total for a in users[0].body) == 1
        return total if alone and shapes.get(total) == shapes[s.dst] and _adds(added[0], s.dst) else ""


def _adds(a: Assign, part: str) -> bool:
    """``t[i] = t[i] * c + part[i]``, with or without the factor."""
    match a.expr:
        case Op(name="add", args=(x, Load(tensor=p, indices=at))) | Op(name="add", args=(Load(tensor=p, indices=at), x)) if (
                p == part and at == a.indices):
            own = Load(a.target, a.indices, a.expr.dtype)
            once = all(sum(isinstance(y, Load) and y.tensor == n for y in walk(a.expr)) == 1 for n in (a.target, part))
            return once and (x == own or (isinstance(x, Op) and x.name == "mul" and own in x.args))
    return False


def _by_lane(kernel: TileKernel, at: int, s: ReduceTile, total: str) -> TileKernel:
    names = Names(kernel)
    kept, part, lane = names.fresh(f"{total}_lanes"), names.fresh(f"{s.dst}_lanes"), names.fresh("lane")
    shapes = {b.name: b for b in kernel.buffers}
    loop = kernel.body[at]
    assert isinstance(loop, For)
    body: list[TileStmt] = []
    for k in loop.body:
        if k is s:
            body.append(replace(s, dst=part, lanes=True))
        elif isinstance(k, Parallel) and total in writes(k):
            body += _parted(k, total, {total: kept, s.dst: part}, lane)
        else:
            body.append(k)
    first = [replace(k, buffer=kept) if isinstance(k, Fill) and k.buffer == total else k for k in kernel.body[:at]]
    buffers: list[Buffer] = []
    for b in kernel.buffers:
        of = {total: kept, s.dst: part}.get(b.name)
        buffers += [b] if b.name != s.dst else []
        buffers += [replace(shapes[b.name], name=of, shape=(*b.shape, LANES))] if of is not None else []
    return replace(kernel, buffers=tuple(buffers), body=(
        *first, replace(loop, body=tuple(body)), ReduceTile("sum", kept, total, True), *kernel.body[at + 1:]))


def _parted(s: Parallel, total: str, of: dict[str, str], lane: str) -> list[TileStmt]:
    """The statement in three: what stands before the addition, the addition for each lane, what stands behind it."""
    (k,) = (i for i, a in enumerate(s.body) if a.target == total)
    extra = (Index(lane),)

    def value(e: Expr) -> Expr:
        if isinstance(e, Load) and e.tensor in of:
            return Load(of[e.tensor], (*e.indices, *extra), e.dtype)
        return map_children(e, value)

    a = s.body[k]
    added = Parallel((*s.vars, lane), (*s.extents, LANES), (Assign(of[total], (*a.indices, *extra), value(a.expr)),), s.comment)
    before, after = (replace(s, body=x, comment="") for x in (s.body[:k], s.body[k + 1:]))
    return [x for x in (before, added, after) if x.body]


def _loaded(e: Expr) -> set[str]:
    return {x.tensor for x in walk(e) if isinstance(x, Load)}
