"""Certificates are re-checked on the way to a kernel: once per distinct fusion, never silently skipped or believed stale."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import redfuser
import redfuser.acrf
from redfuser import recheck as recheck_module
from redfuser import verdicts
from redfuser.acrf import check, fuse, parse_cascade
from redfuser.acrf.cascade import Provenance
from redfuser.acrf.check import verify
from redfuser.acrf.expr import Const, Ref
from redfuser.acrf.state import Fused
from redfuser.cache import Cache
from redfuser.errors import InternalError
from redfuser.recheck import recheck
from redfuser.report import Report
from redfuser.verdicts import content, digest

SOFTMAX = "cascade a(x: f32[I, L]) over l\n m = max[l] x[i, l]\n t = sum[l] exp(x[i, l] - m)\n return t"


def softmax() -> Fused:
    fused = fuse(parse_cascade(SOFTMAX))
    assert isinstance(fused, Fused)
    return fused


def uncorrected(f: Fused) -> Fused:
    """The same state, except that the last accumulator is not rebased when its reference moves."""
    *rest, last = f.state.accumulators
    old = tuple(Ref(f"{n}@old", r.dtype) for n, r in zip(last.names, last.rebase, strict=True))
    return replace(f, state=replace(f.state, accumulators=(*rest, replace(last, rebase=old))))


def region(fused: Fused, name: str = "attn.0") -> Any:
    return SimpleNamespace(name=name, key=str(fused.cascade), fused=fused)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Fused]:
    """Every fusion the checker is asked about."""
    asked: list[Fused] = []
    check = verify.check
    monkeypatch.setattr(verify, "check", lambda fused: [asked.append(fused), *check(fused)][1:])
    return asked


def test_a_distinct_fusion_is_checked_once_and_remembered(tmp_path: Path, checks: list[Fused]) -> None:
    f = softmax()
    layers = [region(f, f"attn.{i}") for i in range(3)]
    (first,) = recheck(layers, cache=Cache(tmp_path)).values()
    assert (first.words, first.holds, len(checks)) == ("re-checked now", True, 1)
    (second,) = recheck(layers, cache=Cache(tmp_path)).values()
    assert (second.words, second.holds, len(checks)) == ("re-checked, from cache", True, 1)
    recheck(layers, cache=Cache(tmp_path / "another"))
    assert len(checks) == 2


def test_another_state_of_the_same_cascade_gets_its_own_verdict(tmp_path: Path) -> None:
    right, wrong = region(softmax()), region(uncorrected(softmax()))
    assert right.key == wrong.key
    recheck([right], cache=Cache(tmp_path))
    with pytest.warns(RuntimeWarning, match="RF901"):
        assert not recheck([wrong], cache=Cache(tmp_path))[wrong.key].holds


def test_a_violation_is_a_warning_an_error_under_strict_and_remembered(tmp_path: Path, checks: list[Fused]) -> None:
    wrong = region(uncorrected(softmax()))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"RF901 the certificate of attn\.0"):
            (verdict,) = recheck([wrong], cache=Cache(tmp_path)).values()
        assert verdict.words == "violated" and not verdict.holds
    reason = recheck_module.refused(verdict)
    assert reason is not None and reason.code == "RF901" and "segmentation" in reason.why
    with pytest.raises(InternalError, match=r"RF901 .*attn\.0"):
        recheck([wrong], "strict", cache=Cache(tmp_path))
    assert len(checks) == 1


def test_switched_off_nothing_is_asked_and_it_says_so(tmp_path: Path, checks: list[Fused]) -> None:
    (verdict,) = recheck([region(uncorrected(softmax()))], "0", cache=Cache(tmp_path)).values()
    assert verdict.words == "not re-checked" and checks == []


# -- what a remembered verdict depends on ------------------------------------------------------------------------------


def test_a_verdict_is_about_everything_that_equality_compares() -> None:
    f = softmax()
    first, last = f.state.accumulators

    def state(**changes: Any) -> Fused:
        return replace(f, state=replace(f.state, accumulators=(first, replace(last, **changes))))

    others = [
        uncorrected(f),
        state(dtype="f64"),
        state(neutral=(Const(-0.0, "f32"),)),
        state(neutral=(Const(0, "f32"),)),
        state(contribution=replace(last.contribution, dtype="f64")),
        replace(f, state=replace(f.state, finalize=f.state.finalize[:1])),
        replace(f, post=f.state.finalize),
        replace(f, certificate=replace(f.certificate, casts="elide")),
        replace(f, certificate=replace(f.certificate, conditions=())),
        replace(f, cascade=replace(f.cascade, axes=tuple(replace(a, extent=7) for a in f.cascade.axes))),
        replace(f, cascade=replace(f.cascade, name="b")),
    ]
    known = [content(x) for x in (f, *others)]
    assert all(known.count(k) == 1 for k in known)
    moved = tuple(replace(s, provenance=Provenance(source="elsewhere:1")) for s in f.cascade.stmts)
    assert content(replace(f, cascade=replace(f.cascade, stmts=moved))) == content(f)


def test_a_verdict_is_of_the_checker_that_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(*check.SOURCES)
    assert before and before == digest(*check.SOURCES)
    copy = tmp_path / "copied"
    shutil.copytree(Path(check.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(check, "__path__", [str(copy)])
    assert digest(*check.SOURCES) == before
    source = copy / "samples.py"
    source.write_text(source.read_text() + "\nDRAWS = 0\n")
    assert digest(*check.SOURCES) == "", "a source that changed while the process runs is not the one that runs"
    monkeypatch.setattr(verdicts, "_LOADED", source.stat().st_mtime + 1)
    assert digest(*check.SOURCES) not in ("", before)


def test_a_file_in_another_room_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest("redfuser.acrf.check")
    shutil.copytree(Path(check.__file__).parent, tmp_path / "check", ignore=shutil.ignore_patterns("__pycache__"))
    last = max((tmp_path / "check").iterdir())
    (tmp_path / "check" / "z").mkdir()
    last.rename(tmp_path / "check" / "z" / last.name)
    monkeypatch.setattr(check, "__path__", [str(tmp_path / "check")])
    assert digest("redfuser.acrf.check") not in ("", before)


def test_without_a_nameable_checker_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          checks: list[Fused]) -> None:
    monkeypatch.setattr(verdicts, "digest", lambda *packages: "")
    for _ in range(2):
        (verdict,) = recheck([region(softmax())], cache=Cache(tmp_path)).values()
        assert verdict.words == "re-checked now"
    assert len(checks) == 2 and Cache(tmp_path).entries() == []


# -- in a compile ------------------------------------------------------------------------------------------------------


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.fixture
def wrong_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong whatever row is asked for: there is no other state."""
    derive = fuse

    def broken(cascade: Any, casts: str = "preserve", row: str = "merged") -> Any:
        out = derive(cascade, casts)
        return uncorrected(out) if isinstance(out, Fused) else out

    monkeypatch.setattr(redfuser.acrf, "fuse", broken)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_CACHE_DIR", str(tmp_path))


def test_the_report_says_where_the_verdict_came_from(store: None) -> None:
    x = torch.randn(4, 33)
    words = [redfuser.compile(rows, (x,), target="cpu").report.cascades[0].certificate for _ in range(2)]
    assert words == ["re-checked now", "re-checked, from cache"]
    report = redfuser.explain(rows, (x,))
    assert "re-checked, from cache" in report.summary()
    assert Report.from_json(report.to_json()) == report
    lasting = report.lasting()
    assert lasting.cascades[0].certificate == "re-checked" and lasting.timings == {}


@pytest.mark.usefixtures("store", "wrong_derivation")
def test_what_does_not_hold_runs_unfused_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 33)
    with pytest.warns(RuntimeWarning, match="RF901"):
        compiled = redfuser.compile(rows, (x,), target="cpu", fallback="allow")
    assert torch.allclose(compiled(x), rows(x))
    (kept,) = compiled.report.cascades
    assert not kept.fused and kept.certificate == "violated" and kept.reason is not None and kept.reason.code == "RF901"
    with pytest.warns(RuntimeWarning, match="RF901"):
        assert not redfuser.explain(rows, (x,)).fused
    with pytest.warns(RuntimeWarning, match="RF901"):
        assert redfuser.kernel(rows).bind(x, target="sm_90a").source() == ""
    monkeypatch.setenv("REDFUSER_VERIFY", "strict")
    with pytest.raises(InternalError, match="RF901"):
        redfuser.compile(rows, (x,), target="cpu")


@pytest.mark.usefixtures("store", "wrong_derivation")
def test_switched_off_the_report_says_that_nobody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_VERIFY", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        report = redfuser.explain(rows, (torch.randn(4, 33),))
    assert report.cascades[0].fused and report.cascades[0].certificate == "not re-checked"
    assert "certificates not re-checked (REDFUSER_VERIFY=0)" in report.summary()
