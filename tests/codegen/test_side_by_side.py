"""Kernels of one model build side by side, and are those that one after the other would give."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from redfuser import bounded, kernels, turns
from redfuser.artifact import KernelSpec
from redfuser.codegen.pool import BuildFailure
from redfuser.reported import Reason
from tests import fused_examples as examples

WANTED = [("k0", examples.softmax(64, 300)), ("k1", examples.softmax(64, 200)), ("k2", examples.softmax(64, 100))]


def test_compilers_overlap_and_thoughts_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until all three are building, and fails its first candidate; no two plan at once."""
    together, planning, seen = threading.Barrier(3, timeout=20), [], []
    inner = kernels.plan

    def plan(*args: Any, **kwargs: Any) -> kernels.Plan:
        planning.append(args[0])
        seen.append(turns._turn.mine.depth)
        return inner(*args, **kwargs)

    def build(request: Any) -> Any:
        together.wait()
        if "first" not in marks.setdefault(request.name, []):
            marks[request.name].append("first")
            return BuildFailure("RF452", "lower", "no layout")
        return KernelSpec(request.name, "cuda", request.arch, request.args, (), config=dict(request.config))

    marks: dict[str, list[str]] = {}
    monkeypatch.setattr(kernels, "plan", plan)
    monkeypatch.setattr("redfuser.codegen.build.try_build", build)
    monkeypatch.setattr("redfuser.codegen.pool.default_pool", lambda: type("P", (), {"size": 4}))
    with turns.taken():
        made = kernels.produce_all(WANTED, "sm_90a")
    assert [m.name for m in made] == ["k0", "k1", "k2"] and sorted(planning) == ["k0", "k1", "k2"] and seen == [1, 1, 1]
    assert all(m.spec is not None and "candidate 1" in m.config for m in made)
    assert [(n.code, n.level) for m in made for n in m.notes] == [("RF452", "info")] * 3, "what was passed over is told"


def test_certificates_are_checked_while_compilers_run_and_what_they_refuse_gets_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check begins while a compiler runs: neither would end without the other."""
    building, checked = threading.Event(), threading.Event()

    def build(request: Any) -> KernelSpec:
        building.set()
        assert checked.wait(20)
        return KernelSpec(request.name, "cuda", request.arch, request.args, ())

    def refused(_names: Collection[str]) -> dict[str, Reason]:
        turns.passed_on()
        with turns.given_up():
            assert building.wait(20)
        checked.set()
        return {"k1": Reason("RF901")}

    monkeypatch.setattr("redfuser.codegen.build.try_build", build)
    monkeypatch.setattr("redfuser.codegen.pool.default_pool", lambda: type("P", (), {"size": 2}))
    with turns.taken():
        made = kernels.produce_all(WANTED, "sm_90a", refused=refused)
    assert [(m.name, m.reason and m.reason.code, m.spec is None) for m in made] == [
        ("k0", None, False), ("k1", "RF901", True), ("k2", None, False)]
    planned = kernels.produce_all(WANTED[:2], "sm_90a", build=False, refused=lambda _: {"k0": Reason("RF901")})
    assert [m.reason and m.reason.code for m in planned] == ["RF901", None] and not planned[0].stages


def test_a_failure_of_the_moment_is_a_warning_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [BuildFailure("RF455", "crash", "the worker died (status -9)"), None]
    monkeypatch.setattr("redfuser.codegen.build.try_build", lambda r: failures.pop(0) or KernelSpec(
        r.name, "cuda", r.arch, r.args, ()))
    note, = kernels.produce(*WANTED[0], "sm_90a").notes
    assert (note.code, note.level) == ("RF455", "warning") and "status -9" in note.text


def test_without_a_compiler_one_candidate_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("redfuser.codegen.build.try_build",
                        lambda r: asked.append(r) or BuildFailure("RF458", "start", "no tilelang"))
    made = kernels.produce(*WANTED[0], "sm_90a")
    assert made.reason is not None and made.reason.code == "RF458" and len(asked) == 1


@pytest.mark.parametrize(("spills", "taken"), [((8, 0, 0, 0), 0), ((1468, 0, 0, 0), 1), ((900, 400, 500, 300), 3)])
def test_registers_in_memory_are_the_last_resort(monkeypatch: pytest.MonkeyPatch, spills: tuple[int, ...], taken: int) -> None:
    """TileLang may give every thread whole rows: the next candidate is built, and the least of evils taken where all are."""
    asked: list[Any] = []

    def build(request: Any) -> KernelSpec:
        asked.append(request)
        return KernelSpec(request.name, "cuda", request.arch, request.args, (), resources=({"spill_bytes": spills[len(asked) - 1]},))

    monkeypatch.setattr("redfuser.codegen.build.try_build", build)
    made = kernels.produce("k", examples.softmax(64, 1000), "sm_90a")
    assert made.spec is not None and made.spec.resources[0]["spill_bytes"] == spills[taken]
    assert f"candidate {taken}" in made.config and [n.code for n in made.notes] == ["RF461"] * (len(asked) - (spills[taken] <= 128))


def test_a_build_without_an_end_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit for a kernel, not one for each of its candidates; then its region has a coded reason."""
    asked: list[Any] = []
    monkeypatch.setattr("redfuser.codegen.build.try_build",
                        lambda r: asked.append(r) or BuildFailure("RF454", "timeout", f"no answer within {r.limit_s:g} s"))
    made = kernels.produce(*WANTED[0], "sm_90a")
    assert made.spec is None and made.reason is not None and made.reason.code == "RF454"
    assert len(asked) == 1 and 0 < asked[0].limit_s <= 120


def test_the_turn() -> None:
    """One thread at a time, given up from any depth, had again afterwards, and not inherited by a child."""
    log: list[str] = []

    def other() -> None:
        with turns.taken():
            log.append("other")

    with turns.taken(), turns.taken():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and not log
        with turns.given_up():
            thread.join(20)
        assert log == ["other"] and turns._turn.lock.locked()
        if (child := os.fork()) == 0:
            with turns.taken():
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not turns._turn.lock.locked()
    with turns.given_up():  # nothing to give up
        pass


def test_what_a_compiler_says_is_held_to_a_bound(tmp_path: Path) -> None:
    status, said = bounded.run(["sh", "-c", "echo first; yes noise | head -c 30000000; echo last >&2; exit 3"])
    assert status == 3 and said.startswith("first\n") and said.endswith("last\n") and "left out" in said
    assert len(said) < 8 * bounded.LOG_BYTES
    assert bounded.run(["sh", "-c", "kill -9 $$"])[0] == -9
    status, said = bounded.run(["sh", "-c", "echo begun; sleep 60 & wait"], limit_s=0.3)
    assert status == -9 and said.startswith("begun\n") and "killed after 0.3 s" in said
    assert len(bounded.cut("x" * 10_000_000)) < 3 * bounded.LOG_BYTES
