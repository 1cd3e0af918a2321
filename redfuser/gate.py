"""The gate before a build: what :mod:`redfuser.chain` does not find right is no kernel, and the report says what was asked."""

from __future__ import annotations

from typing import Any

from redfuser.errors import InternalError, LoweringError
from redfuser.verdicts import Verdict


def checked_scalar(program: Any, arch: str, verify: str, symbols: Any = ()) -> tuple[str, ...]:
    """What the report says of the scalar program's check. Raises LoweringError RF905 where it does not hold."""
    from redfuser import chain

    if verify == "0":
        return ()
    try:
        verdict = chain.scalar_program(program, arch == "cpu", symbols=symbols)
    except LoweringError as error:
        if arch == "cpu":
            raise
        return (f"scalar program not checked ({error.code})",)
    _hold("RF905", "scalar program", program, verdict, verify)
    return (f"scalar program {verdict.words}",)


def checked_tiles(program: Any, config: Any, machine: Any, verify: str, symbols: Any = ()) -> tuple[str, ...]:
    """The same of the tile program of one configuration. Raises LoweringError RF903 where it does not hold, RF904 where no
    smaller one can be had."""
    from redfuser import chain

    if verify == "0":
        return ()
    try:
        verdict = chain.tile_program(program, config, machine, symbols=symbols)
    except LoweringError as error:
        raise LoweringError("RF904", "the kernel cannot be checked on smaller extents", why=str(error)) from error
    _hold("RF903", "tile program", program, verdict, verify)
    if verify == "strict" and not symbols and (wrong := chain.tile_passes(program, config, machine)):
        raise InternalError("RF903", f"a pass over the tiles of {program.fused.cascade.name} changes them", why=wrong[0])
    return (f"tile program {verdict.words}",)


def _hold(code: str, what: str, program: Any, verdict: Verdict, verify: str) -> None:
    if verdict.holds:
        return
    text, why = f"the {what} of {program.fused.cascade.name} does not compute its cascade", "; ".join(verdict.violations)
    help = "this is a defect of RedFuser: please report the cascade that `explain` prints"
    if verify == "strict":
        raise InternalError(code, text, why=why, help=help)
    raise LoweringError(code, text, why=why, help=help)
