"""From proved fusions to kernels for one target, each as the models choose or as a tuning record decides.

``produce`` answers with a value in every case: a kernel with the dump of each stage, or the reason the region stays with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from redfuser import progress, strict, turns
from redfuser.acrf.state import Fused
from redfuser.autotune.lookup import Decision, Records
from redfuser.autotune.records import text_of
from redfuser.plan import NO_COMPILER, Plan, Produced, describe_state, plan
from redfuser.reported import Note, Reason
from redfuser.sizes import Symbol
from redfuser.verdicts import JUDGED


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


def _as_decided(name: str, fused: Fused, arch: str, build: bool, verify: str, decided: Decision) -> Produced:
    """What a record chose, checked and built as anything else; where that is no longer to be had, what the model chooses, with
    a note."""
    record = decided.record
    if not record.fuse:
        return Produced(name, stages={"cascade": str(fused.cascade), "fused": describe_state(fused)}, measured=decided.measured,
                        reason=Reason("RF704", condition="fusing is faster", why=f"{decided.measured} ({decided.by})",
                                      help="nothing to change; `redfuser tune` measures again"))

    def only(legal: list[Any]) -> list[Any]:
        from redfuser.tensorize.config import walks

        return [c for c in walks(legal) if c == wanted]

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
