"""From a proved fusion to a kernel for one target: strategy, segment program, then the scalar or the tile road.

``produce`` answers with a value in every case: a kernel with the dump of each stage, or the reason the region stays
with torch. A candidate that fails its check (:mod:`redfuser.chain`) or does not build is a skipped candidate; when none is
left, the last one's failure is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from redfuser import progress, strict, turns
from redfuser.acrf.state import Fused
from redfuser.artifact import KernelSpec
from redfuser.autotune.lookup import Decision, Records
from redfuser.autotune.records import text_of
from redfuser.errors import BuildError, InputError, LoweringError, RedFuserError
from redfuser.gate import checked_scalar, checked_tiles
from redfuser.reported import Measured, Modelled, Note, Reason
from redfuser.sizes import Symbol
from redfuser.untuned import SPILLED
from redfuser.verdicts import JUDGED

NO_COMPILER = ("RF450", "RF458", "RF459", "RF462")
"""What every candidate would meet alike."""
TOO_LONG = "RF454"
"""A compiler that finds no end on one candidate finds none on its siblings: one limit is waited for, not four."""
CANDIDATES = 4
"""Configurations tried before giving up; the resource model orders them."""


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


def produce(name: str, fused: Fused, arch: str, *, build: bool = True, strategy: str | None = None,
            splits: int | None = None, verify: str = "1", symbols: tuple[Symbol, ...] = (),
            order: Callable[[list[Any]], list[Any]] = list, decided: Decision | None = None) -> Produced:
    """Realise ``fused`` for ``arch`` (``cpu`` or an architecture of :data:`redfuser.target.TARGETS`).

    build=False plans only: strategy, program and source, no binaries (what ``explain`` needs).
    strategy, splits: override the resource model's choice; order: of the configurations that it puts in order, those to try,
    the first first. symbols: the ranges of its symbolic extents; choices are made for
    what is usual in them. decided: by a tuning record, which beats the model where what it names is still there. verify: the
    setting of that name; ``0`` checks nothing, under ``strict`` a program that does not hold is an InternalError."""
    if decided is not None:
        return _as_decided(name, fused, arch, build, verify, decided)
    found = plan(name, fused, arch, strategy=strategy, splits=splits, verify=verify, symbols=symbols, order=order)
    return found.built() if build else found.made


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


def _as_decided(name: str, fused: Fused, arch: str, build: bool, verify: str, decided: Decision) -> Produced:
    """What a record chose, checked and built as anything else; where that is no longer to be had, what the model chooses, with
    a note."""
    record = decided.record
    if not record.fuse:
        return Produced(name, stages={"cascade": str(fused.cascade), "fused": describe_state(fused)}, measured=decided.measured,
                        reason=Reason("RF704", condition="fusing is faster", why=f"{decided.measured} ({decided.by})",
                                      help="nothing to change; `redfuser tune` measures again"))

    def only(legal: list[Any]) -> list[Any]:
        return [c for c in legal if c == wanted]

    wanted = _config(record.choice.config)

    made = produce(name, fused, arch, build=build, verify=verify, strategy=record.choice.strategy,
                   splits=record.choice.splits, order=only)
    if made.reason is None:
        said = made.config.partition(": ")[2] or made.config
        return replace(made, config=f"{decided.by}: {said}", measured=decided.measured,
                       notes=(*made.notes, *_older(made, decided)))
    if made.reason.code in NO_COMPILER:
        return made
    why = "the compiler has no such candidate now" if made.reason.code == "RF410" else made.reason.why or made.reason.condition
    other = produce(name, fused, arch, build=build, verify=verify)
    return replace(other, notes=(Note(f"{name}: a {decided.by} chooses {record.choice}; the model decides instead: "
                                      f"{why.strip().splitlines()[0][:200]}", "RF705"), *other.notes))


def _config(data: Any) -> Any:
    """A configuration from a record; None for one that there is none like."""
    from redfuser.tensorize import TileConfig

    try:
        return strict.read(TileConfig, data)
    except ValueError:
        return None


def _older(made: Produced, decided: Decision) -> tuple[Note, ...]:
    """A note where the kernel that was measured was of another text."""
    if not decided.record.text or text_of(made.stages.get("source", "")) in ("", decided.record.text):
        return ()
    return (Note(f"{made.name}: a {decided.by} measured another text of this kernel; `redfuser tune` measures again", "RF706"),)


def produce_all(wanted: Sequence[tuple[str, Fused]], arch: str, *, build: bool = True, verify: str = "1",
                records: Records | None = None, refused: Callable[[Collection[str]], Mapping[str, Reason]] = lambda _: {}
                ) -> list[Produced]:
    """:func:`produce` of every (name, fusion), in order, each as the records decide. Kernels build side by side; plans are made
    one at a time, and no plan depends on another's, so the kernels are those that one after the other would give. refused:
    finds, while compilers run, which of these must not have a kernel, and why; it passes its turn on. It is not asked of
    what no kernel can be planned for, but of what a check found wrong: whether the fusion itself is decides what is tried."""
    finished: list[str] = []

    def asked(plans: Iterable[Plan]) -> list[str]:
        return [p.made.name for p in plans if p.made.reason is None or p.made.reason.code in JUDGED]

    def told(made: Produced) -> Produced:
        finished.append(made.name)
        progress.tell("building kernels" if build else "planning kernels", len(finished), len(wanted))
        return made

    def begun(name: str, fused: Fused) -> Plan:
        decided = records.decision(fused, arch) if records is not None else None
        if decided is None:
            return plan(name, fused, arch, verify=verify)
        return Plan(Produced(name), lambda: produce(name, fused, arch, build=build, verify=verify, decided=decided))

    if not build or arch == "cpu":
        plans = [begun(*item) for item in wanted]
        bad = refused(asked(plans))
        return [Produced(name, reason=bad[name]) if (name := p.made.name) in bad else told(
            p.built() if build or not p.made.stages else p.made) for p in plans]
    from redfuser.codegen.pool import default_pool

    def one(p: Plan) -> Produced:
        with turns.taken():
            return told(p.built())

    with turns.given_up(), ThreadPoolExecutor(max(1, min(default_pool().size + 1, len(wanted)))) as threads:
        made = []
        with turns.taken():
            for item in wanted:
                made.append((p := begun(*item), threads.submit(one, p)))
                turns.passed_on()
            bad = refused(asked(p for p, _ in made))
        return [Produced(name, reason=bad[name]) if (name := p.made.name) in bad else m.result() for p, m in made]


def with_hip(made: Mapping[str, Produced]) -> dict[str, Produced]:
    """The same, with the HIP text of each kernel among its stages: what a compiler for one of AMD's targets is given, without
    TileLang's headers. All in one process of TileLang; a kernel that it has no layout for has none."""
    from redfuser.codegen import hip

    wanted = {p.name: p for p in made.values() if p.request is not None}
    with turns.given_up():
        texts = dict(zip(wanted, hip.texts([p.request for p in wanted.values()]), strict=True))
    return {k: replace(p, stages={**p.stages, "hip": texts[p.name]}) if texts.get(p.name) else p for k, p in made.items()}


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
    return Plan(first[1], lambda: _first_built(chain([first], candidates), arch, passed, symbols, order is not list))


def _no_room(name: str, arch: str) -> LoweringError:
    return LoweringError("RF410", f"no configuration of {name} fits {arch}",
                         help="the region runs unfused; a smaller head dimension or row would fit")


def _first_built(candidates: Iterable[tuple[int, Produced]], arch: str, passed: list[Note], symbols: tuple[Symbol, ...],
                 asked: bool) -> Produced:
    """The first that builds, and keeps its registers where it was not asked for; else the one that keeps most of them."""
    failure: RedFuserError | None = None
    spare: tuple[int, Produced] | None = None
    for rank, chosen in candidates:
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
    from redfuser.tensorize.schedule.history import History
    from redfuser.tensorize.symbolic import tensorize_sizes

    usual = at(program, {s.name: s.usual for s in symbols}) if symbols else program
    machine, failure, found = target(arch), None, False
    legal = [c for c in configs(usual, machine) if not (symbols and c.persistent)]
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
        request = Request(source, spec_skeleton(tiles), name, arch, tilelang.build_config(tiles, config))
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
