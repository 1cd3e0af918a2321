"""Hold every distinct fusion against its certificate, once: what a compile trusts was checked by code that shares nothing
with the deriver (:mod:`redfuser.acrf.check.verify`), by this process or by an earlier one (:mod:`redfuser.verdicts`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redfuser.cache import Cache
from redfuser.errors import InternalError
from redfuser.reported import Reason
from redfuser.verdicts import Verdict, remember


def recheck(regions: Iterable[Any], policy: str = "1", cache: Cache | None = None,
            another: Callable[[str], bool] = lambda _: False) -> dict[str, Verdict]:
    """A verdict per distinct fusion, by the regions' ``key``.

    policy: the setting ``verify``. ``0`` asks nobody. ``strict`` raises InternalError RF901 for the first that does not
    hold (not for RF215: there is nothing to prove about such a program); otherwise that is a warning, and the caller keeps
    such a region unfused (:func:`refused`). another: has a region, by its key, a state beside the one that does not hold? It is
    tried before anybody is warned."""
    verdicts: dict[str, Verdict] = {}
    store = cache if cache is not None else Cache()
    distinct: dict[str, Any] = {}
    for region in regions:
        distinct.setdefault(region.key, region)
    for region in distinct.values():
        verdict = Verdict("off") if policy == "0" else examine(region.fused, store)
        verdicts[region.key] = verdict
        if (reason := refused(verdict)) is not None:
            what = f"the certificate of {region.name} does not hold"
            if policy == "strict" and reason.code == "RF901":
                raise InternalError("RF901", what, why=reason.why, help=reason.help)
            if another(region.key):
                continue
            warnings.warn(f"{reason.code} {what}: there is no kernel of it, nor of any cascade equal to it; there may be of "
                          f"smaller ones. {reason.why}", RuntimeWarning, stacklevel=2)
    return verdicts


def refused(verdict: Verdict) -> Reason | None:
    """Why a region with this verdict stays unfused; None when nothing speaks against it."""
    if verdict.holds:
        return None
    return unprovable(verdict.violations) or Reason(
        "RF901", condition="its certificate holds", why="; ".join(verdict.violations[:3]),
        help="this is a defect of RedFuser: please report the cascade that `explain` prints")


def unprovable(violations: Sequence[str]) -> Reason | None:
    """Nothing contradicts the fusion, but the program's own results are NaN or infinite wherever one looks."""
    if not violations or not all(v.startswith("samples:") for v in violations):
        return None
    return Reason("RF215", condition="the program's results are defined on some inputs", why=violations[0],
                  help="look for a constant that makes every result NaN or infinite (x / 0.0, x * inf, nan), or an empty axis")


def examine(fused: Any, store: Cache) -> Verdict:
    """The verdict on one fusion."""
    from redfuser.acrf.check import SOURCES

    def ask() -> Sequence[str]:
        from redfuser.acrf.check import verify

        return verify.check(fused)

    return remember("certificate", fused, SOURCES, ask, store)
