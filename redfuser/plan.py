"""A kernel before it is built: strategy, segment program, then the scalar or the tile road up to a text.

A candidate that fails its check (:mod:`redfuser.chain`) or does not build is a skipped candidate; when none is left, the last
one's failure is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from redfuser import turns
from redfuser.acrf.state import Fused
from redfuser.artifact import KernelSpec
from redfuser.errors import BuildError, InputError, LoweringError, RedFuserError
from redfuser.gate import checked_scalar, checked_tiles
from redfuser.ranking import first_configurations
from redfuser.reported import Measured, Modelled, Note, Reason
from redfuser.sizes import Symbol
from redfuser.untuned import SPILLED

NO_COMPILER = ("RF450", "RF458", "RF459", "RF462")
"""What every candidate would meet alike."""
TOO_LONG = "RF454"
"""A compiler that finds no end on one candidate finds none on its siblings: one limit is waited for, not four."""
CANDIDATES = 4
"""Configurations tried before giving up; the resource model orders them."""
SLOWER = 4.0
"""Times what the first candidate takes by the model, up to which another stands in for it where it does not build: what is
slower than that torch does better itself (a row in 1024 parts of 40 elements for one that threads walk: 145 us, modelled 233
for 25; as torch has it 61)."""


@dataclass(frozen=True, slots=True)
class Produced:
    """What one cascade became. ``spec`` is None when the region stays unfused (``reason``) or was only planned. ``notes``:
    candidates that the kernel was not made of, although the resource model would have had them first. ``checks``: what was
    held against the cascade on the way, and whether now or earlier. ``roundings``: casts that the kernel added. ``measured``:
    what the tuning record says that decided. ``request``: for a GPU, what would be built."""

    name: str
    strategy: str = ""
    splits: int = 1
    spec: KernelSpec | None = None
    reason: Reason | None = None
    config: str = ""
    notes: tuple[Note, ...] = ()
    stages: dict[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ()
    modelled: tuple[Modelled, ...] = ()
    measured: Measured | None = None
    request: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel before anything is built: ``made``, and what builds it; nothing does where ``made`` says why there is none."""

    made: Produced
    build: Callable[[], Produced] | None = None

    def built(self) -> Produced:
        if self.build is None:
            return self.made
        try:
            return self.build()
        except (LoweringError, BuildError, InputError) as error:
            return Produced(self.made.name, stages={k: self.made.stages[k] for k in ("cascade", "fused", "program")},
                            reason=_reason(error))


def plan(name: str, fused: Fused, arch: str, *, strategy: str | None = None, splits: int | None = None, verify: str = "1",
         symbols: tuple[Symbol, ...] = (), order: Callable[[list[Any]], list[Any]] = list) -> Plan:
    """:func:`produce` up to the first binary: a program, checked, and the text of the first candidate for it."""
    from redfuser.strategies.symbols import declared
    from redfuser.untuned import asked_for, untuned

    stages = {"cascade": str(fused.cascade), "fused": describe_state(fused)}
    try:
        chosen: Any
        declared(fused, symbols)
        if strategy is None:
            chosen, program = untuned(fused, arch, symbols)
        else:
            chosen, program = strategy, asked_for(fused, arch, strategy, splits or 2)
        stages["program"] = str(program)
        made = Produced(name, chosen, program.splits, stages=stages)
        made = replace(made, checks=checked_scalar(program, arch, verify, symbols))
        return _scalar(made, program, symbols) if arch == "cpu" else _tiled(made, program, arch, verify, symbols, order)
    except (LoweringError, InputError) as error:
        return Plan(Produced(name, stages=stages, reason=_reason(error)))


def _scalar(made: Produced, program: Any, symbols: tuple[Symbol, ...]) -> Plan:
    """The CPU road: scalar TIR, scheduled and built with LLVM."""
    from redfuser.strategies import cpu

    made = replace(made, stages={**made.stages, "tir": cpu.source(program, symbols)}, config="scalar TIR")
    return Plan(made, lambda: replace(made, spec=cpu.build(program, symbols)))


def _tiled(made: Produced, program: Any, arch: str, verify: str, symbols: tuple[Symbol, ...],
           order: Callable[[list[Any]], list[Any]]) -> Plan:
    """The GPU road: tile program, TileLang text, binaries from a worker process."""
    passed: list[Note] = []
    by = "cost model" if order is list else "asked for"
    candidates = ((rank, replace(made, stages={**made.stages, **texts}, config=f"{by}, candidate {rank}: {config}",
                                 checks=made.checks + checks, roundings=tiles.roundings, notes=tuple(passed),
                                 modelled=() if symbols else _modelled(tiles, arch), request=request))
                  for rank, config, tiles, texts, request, checks in _candidates(
                      made.name, program, arch, verify, passed, symbols, order))
    first = next(candidates, None)
    if first is None:
        raise _no_room(made.name, arch)
    return Plan(first[1], lambda: _first_built(chain([first], candidates), passed, symbols, order is not list))


def _no_room(name: str, arch: str) -> LoweringError:
    return LoweringError("RF410", f"no configuration of {name} fits {arch}",
                         help="the region runs unfused; a smaller head dimension or row would fit")


def _first_built(candidates: Iterable[tuple[int, Produced]], passed: list[Note], symbols: tuple[Symbol, ...],
                 asked: bool) -> Produced:
    """The first that builds, and keeps its registers where it was not asked for; else the one that keeps most of them. Raises
    BuildError where none builds, or none that is not far slower (:data:`SLOWER`)."""
    failure: RedFuserError | None = None
    spare: tuple[int, Produced] | None = None
    least = 0.0
    for rank, chosen in candidates:
        seconds = sum(m.seconds for m in chosen.modelled)
        if failure is not None and least and seconds > SLOWER * least and not asked:
            break
        least = least or seconds
        try:
            spec = _build(chosen.request, symbols)
            spilled = max((r.get("spill_bytes", 0) for r in spec.resources), default=0)
            if spilled <= SPILLED or asked:
                return replace(chosen, spec=spec)
            passed.append(Note(f"{chosen.name}: candidate {rank} keeps {spilled} bytes of its registers in memory", "RF461"))
            spare = min(filter(None, (spare, (spilled, replace(chosen, spec=spec)))), key=lambda kept: kept[0])
        except BuildError as error:
            if error.code in NO_COMPILER:
                raise
            failure = error
            passed.append(_passed_over(chosen.name, rank, error))
            if error.code == TOO_LONG:
                break
    if spare is not None:
        return replace(spare[1], notes=tuple(passed))
    assert failure is not None, "a candidate is built, is spare, or failed"
    raise failure


def _modelled(tiles: Any, arch: str) -> tuple[Modelled, ...]:
    """The model of resources of every kernel, as lowered."""
    from redfuser.target import target
    from redfuser.tensorize.model import time_of

    times = [(k.name, time_of(k, target(arch))) for k in tiles.kernels]
    return tuple(Modelled(name, t.total, t.limit) for name, t in times if t is not None)


def _passed_over(name: str, rank: int, error: RedFuserError) -> Note:
    lasting = getattr(getattr(error, "failure", None), "lasting", True)
    why = (error.why or error.what).strip().splitlines()[0][:200]
    return Note(f"{name}: candidate {rank} was passed over: {why}"
                + ("" if lasting else " (of this machine at this time: the next compile tries it again)"),
                error.code, "info" if lasting else "warning")


def _candidates(name: str, program: Any, arch: str, verify: str, passed: list[Note],
                symbols: tuple[Symbol, ...], order: Callable[[list[Any]], list[Any]]) -> Iterator[tuple[Any, ...]]:
    """(rank, config, tiles, texts of the stages, request, checks) of the best configurations; one that does not tensorise
    or that fails its check is passed over unless it is the last."""
    from redfuser.codegen import tilelang
    from redfuser.codegen.build import Request
    from redfuser.strategies.symbols import at
    from redfuser.target import target
    from redfuser.tensorize import configs, spec_skeleton, tensorize
    from redfuser.tensorize.hidden import walked_first
    from redfuser.tensorize.schedule.history import History
    from redfuser.tensorize.tiles import tensorize_sizes

    usual = at(program, {s.name: s.usual for s in symbols}) if symbols else program
    machine, failure, found = target(arch), None, False
    legal = first_configurations(program, machine, walked_first) if order is list and not symbols else \
        [c for c in configs(usual, machine) if not (symbols and c.persistent)]
    for rank, config in enumerate(order(legal)[:CANDIDATES]):
        try:
            history = History()
            tiles = tensorize_sizes(program, symbols, config, machine) if symbols else \
                tensorize(program, config, machine, history)
            checks = checked_tiles(program, config, machine, verify, symbols)
        except LoweringError as error:
            failure = error
            passed.append(_passed_over(name, rank, error))
            continue
        found = True
        source = tilelang.print_program(tiles, machine.kind)
        request = Request(source, spec_skeleton(tiles), name, arch, tilelang.build_config(tiles, config),
                          tilelang.limit_s(tiles))
        yield rank, config, tiles, {"passes": str(history), "tiles": str(tiles), "source": source}, request, checks
    if not found and failure is not None:
        raise failure


def _build(request: Any, symbols: tuple[Symbol, ...]) -> KernelSpec:
    from redfuser.codegen import hip
    from redfuser.codegen.build import try_build
    from redfuser.codegen.pool import BuildFailure
    from redfuser.codegen.sized import try_build_sizes
    from redfuser.target import target

    amd = target(request.arch).kind == "hip"
    with turns.given_up():
        built = hip.try_build(request, symbols=symbols) if amd else \
            try_build_sizes(request, symbols) if symbols else try_build(request)
    if isinstance(built, BuildFailure):
        raise built.to_error(request.name)
    return built


def describe_state(fused: Fused) -> str:
    """The fused form as people read it: producers, state, what leaves it, and the certificate's choices."""
    state, lines = fused.state, []
    lines += ["producers", *(f"  {s}" for s in fused.producers)] if fused.producers else []
    if state.accumulators:
        lines += ["init", *(f"  {n} = {c}" for a in state.accumulators for n, c in zip(a.names, a.neutral))]
        lines += ["step", *(f"  {a}" for a in state.accumulators)]
        lines += ["merge  step's rebase with @old := @a, reduced with the same at @b"]
    lines += ["finalize", *(f"  {s}" for s in state.finalize)] if state.finalize else []
    lines += ["then", *(f"  {s}" for s in fused.post)] if fused.post else []
    lines += ["choices", *(f"  {c}" for c in fused.certificate.choices)] if fused.certificate.choices else []
    lines += ["roundings moved", *(f"  {r}" for r in fused.certificate.roundings)] if fused.certificate.roundings else []
    return "\n".join(lines)


def _reason(error: RedFuserError) -> Reason:
    return Reason(error.code, condition=error.what, why=error.why or error.what, help=error.help)
