"""What the steps of a loop that was unrolled read of a tensor lies together: the tensor has the steps first.

    a = exp(x)                     # [d, t, n]                a = exp(permute(x))            # [t, d, n]
    h = a[:, 0] * h + b[:, 0]                        -->      h = a[0] * h + b[0]
    h = a[:, 1] * h + b[:, 1]                                 h = a[1] * h + b[1]

A step of the first lies in pieces, and kernels that steps share read it after a copy each. Where a map makes a tensor of
which nothing but such slices is read, the map is computed in the other order, and so are maps in front that lead to it alone;
of what they read otherwise they are given views.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from redfuser.frontend.builder import Again, renamed
from redfuser.frontend.imported import Imported
from redfuser.frontend.local import MAPS
from redfuser.tvm_compat import bindings, is_static, op_name, prim_int, relax, results, shape_of, variables

op = relax.op
STEPS = 4
"""Slices of a tensor that make it one of steps, at least: of fewer, their kernels read the tensor in place."""


def steps_first(imported: Imported) -> Imported:
    """``imported`` with the tensors of unrolled loops in the order of their steps; as it is where there are none."""
    found = _Steps(imported)
    return found.rewritten() if found.axis else imported


class _Steps:
    """``axis``: of the steps, by the name of each map that is computed with it first."""

    def __init__(self, imported: Imported) -> None:
        self.imported, self.main = imported, imported.mod["main"]
        self.bound = [(b.var, b.value) for b in bindings(self.main)]
        readers: dict[str, list[Any]] = {}
        for var, e in self.bound:
            for name in dict.fromkeys(variables(e)):
                readers.setdefault(name, []).append((var, e))
        kept = {f.name_hint for f in results(self.main)}
        self.axis: dict[str, int] = {}
        for var, e in reversed(self.bound):
            name, read = var.name_hint, readers.get(var.name_hint, [])
            if op_name(e) not in MAPS or name in kept or not read or not is_static(var.struct_info):
                continue
            axes = {_step(r, var) for _, r in read}
            if axes == {None}:  # maps of the same order, all of them
                axes = {self.axis[v.name_hint] if v.name_hint in self.axis and shape_of(v) == shape_of(var) else None
                        for v, _ in read}
            elif len(read) < STEPS:
                continue
            axis = axes.pop()
            if not axes and axis is not None and prod(shape_of(var)[:axis]) > 1 and axis < len(shape_of(var)) - 1:
                self.axis[name] = axis

    def rewritten(self) -> Imported:
        builder = Again(list(self.main.params))
        now: dict[str, Any] = {}
        for var, e in self.bound:
            builder.begin(var.name_hint, self.imported.provenance[var.name_hint])
            source = e.args[0].name_hint if op_name(e) == "strided_slice" and isinstance(e.args[0], relax.Var) else ""
            if var.name_hint in self.axis:
                axis, rank = self.axis[var.name_hint], len(shape_of(var))
                args = [self.turned(builder, a, axis, rank, now) for a in e.args]
                spread = op_name(e) == "broadcast_to"
                now[var.name_hint] = builder.emit(op.broadcast_to(args[0], _first(shape_of(var), axis)) if spread else
                                                  relax.Call(e.op, args, e.attrs, e.sinfo_args))
            elif source in self.axis:
                at = prim_int(e.args[2].fields[0])
                step = builder.emit(op.strided_slice(now[source], axes=[0], begin=[at], end=[at + 1], strides=[1]), "step")
                now[var.name_hint] = builder.emit(op.reshape(step, shape_of(var)))
            else:
                now[var.name_hint] = builder.emit(renamed(e, now))
        outputs = [now.get(f.name_hint, f) for f in results(self.main)]
        return replace(self.imported, mod=builder.finish(outputs), provenance=builder.provenance)

    def turned(self, builder: Again, a: Any, axis: int, rank: int, now: dict[str, Any]) -> Any:
        """An operand of such a map: one that is computed so itself, or a view with the steps first."""
        if not isinstance(a, (relax.Var, relax.Constant)) or not shape_of(a):
            return a
        if isinstance(a, relax.Var) and a.name_hint in self.axis:
            return now[a.name_hint]
        x = now.get(a.name_hint, a) if isinstance(a, relax.Var) else a
        own = (1,) * (rank - len(shape_of(a))) + shape_of(a)
        x = builder.emit(op.reshape(x, own), "line")
        if own[axis] == 1 or prod(own[:axis]) == 1:  # nothing moves in memory
            return builder.emit(op.reshape(x, _first(own, axis)), "steps")
        return builder.emit(op.permute_dims(x, [axis, *(d for d in range(rank) if d != axis)]), "steps")


def _step(e: Any, var: Any) -> int | None:
    """The axis of which it is one place of ``var``; None for anything else."""
    if op_name(e) != "strided_slice" or e.args[0].name_hint != var.name_hint:
        return None
    axes, begin, end, steps = ([prim_int(v) for v in t.fields] for t in e.args[1:5])
    one = len(axes) == 1 and begin[0] >= 0 and end[0] - begin[0] == steps[0] == 1
    return axes[0] % len(shape_of(var)) if one else None


def _first(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (shape[axis], *shape[:axis], *shape[axis + 1:])
