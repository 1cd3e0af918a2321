"""Which results of the outer graph must be copied, for memory of their own: where torch computes a result, what a user writes
into it reaches neither an input, nor a weight, nor another result, nor the next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redfuser.outer.layout import SAME
from redfuser.tvm_compat import op_name, relax

VIEWS = (*SAME, "permute_dims", "broadcast_to", "strided_slice", "split")


def copied(results: Sequence[Any], made: Sequence[str], held: Sequence[str], tables: Sequence[str],
           value: Callable[[Any], Any]) -> list[int]:
    """Positions in ``results`` (variables of main). made: for each the name of what made its memory where torch runs the model
    (:func:`redfuser.frontend.memory.roots`), or nothing where that is not known: then each has memory of its own. held: inputs
    and weights; tables: values that are kept from call to call. value: what a variable is bound to."""
    owners = {name: name for name in held} | dict.fromkeys((*tables, ""), "")
    names = made if len(made) == len(results) else [f"result {i}" for i in range(len(results))]
    return [i for i, (var, name) in enumerate(zip(results, names)) if owners.setdefault(_lies_in(var, value), name) != name]


def _lies_in(at: Any, value: Callable[[Any], Any]) -> str:
    """The variable in whose memory a variable's text gives its value; nothing for a constant."""
    while True:
        call = value(at)
        if isinstance(call, relax.Constant):
            return ""
        if isinstance(call, relax.TupleGetItem):
            call = value(call.tuple_value)
            if op_name(call) != "split":
                return str(at.name_hint)
        if isinstance(call, relax.Var) and not call.same_as(at):
            at = call
        elif op_name(call) in VIEWS and isinstance(call.args[0], relax.Var):
            at = call.args[0]
        else:
            return str(at.name_hint)
