"""Refusal inside the deriver: raised where a condition fails, turned into a NotFusable value at the door (derive/fuse.py)."""

from __future__ import annotations

import logging
from typing import NoReturn

from redfuser.acrf.expr import COMPARISONS, Expr, Op

log = logging.getLogger("redfuser.acrf")


class Refuse(Exception):
    """A condition failed. ``expression`` is the smallest sub-expression at fault."""

    def __init__(self, code: str, condition: str, why: str, help: str) -> None:
        self.code, self.condition, self.why, self.help = code, condition, why, help
        super().__init__(f"{code}: {condition}: {why}")


def defect(stage: str, e: Exception) -> Refuse:
    """An exception of our own code while a valid program is analysed: logged with its trace, and a refusal like any other,
    so that the program runs without the cascade."""
    log.error("RF902 %s failed: this is a defect of RedFuser, please report it", stage, exc_info=e)
    return Refuse("RF902", f"{stage} ends without an error", f"{type(e).__name__}: {e}",
                  "this is a defect of RedFuser: please report the program and the trace in the log")


def refuse_condition(cond: Expr) -> NoReturn:
    """A mask decided by comparing data with a result."""
    raise Refuse("RF204", f"the condition {cond} does not depend on results",
                 "which elements count is decided by comparing each with a result of the whole row; elements "
                 "already absorbed cannot be decided anew when the result changes",
                 "keep the selection outside the cascade (a second pass over the row)")


def no_rule(e: Expr) -> NoReturn:
    """Why the table has no row for this operation on data and results."""
    name = e.name if isinstance(e, Op) else "cast"
    if name in ("floor", "ceil", "round"):
        raise Refuse("RF205", f"the argument of {e} is data only",
                     "it rounds a value that depends on a result of the whole row: a rounding moves with the result "
                     "and does not commute with a change of it",
                     "round in a second pass, or allow it with casts=\"elide\" (its error bound is reported)")
    if name in COMPARISONS or name in ("and", "or", "not", "isnan"):
        refuse_condition(e)
    not_separable(e, f"{name} of data and results together is not a sum of products of both")


def not_separable(e: Expr, why: str) -> NoReturn:
    """``e`` is no finite sum of products of data and results."""
    raise Refuse("RF201", f"{e} = sum of G(data) * H(results)", why + ": it has no finite-rank decomposition",
                 "compute the result in an earlier pass, so that it is an input of the cascade")
