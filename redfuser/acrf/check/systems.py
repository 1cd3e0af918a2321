"""The number systems by name."""

from __future__ import annotations

from redfuser.acrf.check.digits import Digits
from redfuser.acrf.check.domains import Arrays, Domain
from redfuser.acrf.check.exact import Exact


def domain(precision: str, round_casts: bool = True) -> Domain:
    """``f64``, ``program``, ``exact`` (rationals) or ``digits`` (50 digits)."""
    match precision:
        case "f64":
            return Arrays(program=False, round_casts=round_casts)
        case "program":
            return Arrays(program=True, round_casts=round_casts)
        case "exact":
            return Exact(round_casts)
        case "digits":
            return Digits(round_casts)
    raise ValueError(f"precision is f64, program, exact or digits, not {precision!r}")
