"""`bench expect` and `bench targets`: figures that are modelled say so, and what was not built says why."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from redfuser.acrf import fuse, parse_cascade
from redfuser.bench import breadth, modelled
from redfuser.cli.bench import bench
from redfuser.errors import InputError
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from tests.listed import all_cases
from workloads.correctness import Program


def test_parts_of_one_architecture_have_times_of_their_own(tmp_path: Path) -> None:
    parts = ("MI300X", "MI308X", "MI325X")
    done = CliRunner().invoke(bench, ["expect", "mha", "--shapes", "H9", "--part", ",".join(parts), "--json",
                                      str(tmp_path / "m.jsonl"), "--markdown", "-q"])
    assert done.exit_code == 0 and done.output.startswith("| ms, modelled | MI300X | MI308X | MI325X |")
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [(r["part"], r["kind"]) for r in rows] == [(p, modelled.MARK) for p in parts]
    first, fewer, faster = (r["ms"] for r in rows)
    assert faster <= first < fewer and all(r["ms"] > r["floor_ms"] > 0 for r in rows)


def test_a_time_below_the_floor_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (c for c in all_cases() if str(c) == "mha/H9")
    monkeypatch.setattr(modelled, "parse", lambda text: SimpleNamespace(kernels=[None]))
    for seconds, time in ((8e-4, None), (9e-4, 0.9)):  # 4.3 GB at 5.3 TB/s take .81 ms
        monkeypatch.setattr(modelled, "time_of", lambda k, at, s=seconds: SimpleNamespace(total=s, limit="bytes"))
        found = modelled._on(case, "MI300X", ["tiles"], "")
        assert found.ms == pytest.approx(time) if time else found.ms is None and "impossible" in found.why


def test_a_part_that_is_not_known_is_refused() -> None:
    done = CliRunner().invoke(bench, ["expect", "mha", "--part", "MI9"])
    assert isinstance(done.exception, InputError) and done.exception.code == "RF496"


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[breadth.Row]:
    """Three programs: one with a kernel of both kinds of registers, one refused, one that a compiler did not take."""
    fused = fuse(parse_cascade("cascade rows(x: f16[64, 256]) over l\n  m[i] = max[l] f32(x[i, l])\n  return m"))
    program = realise(fused, "single")  # type: ignore[arg-type]
    tiles = tensorize(program, configs(program, target("gfx942"))[0], target("gfx942"))
    said = {"registers": 20, "accumulator_registers": 12, "spill_bytes": 0, "static_shared_bytes": 0}
    spec = SimpleNamespace(finished=True, resources=[said], launches=[SimpleNamespace(block=(128, 1, 1), shared_bytes=64)])
    made = SimpleNamespace(name="k0", spec=spec, stages={"tiles": str(tiles)})

    def compiled(p: Any, arch: str) -> Any:
        reasons = {"b": SimpleNamespace(code="RF497", why="too few blocks", condition=""),
                   "c": SimpleNamespace(code="RF452", why="no layout\nat all", condition="")}
        refused = [SimpleNamespace(reason=reasons[p.what])] if p.what in reasons else []
        return SimpleNamespace(produced={} if refused else {"r": made}, report=SimpleNamespace(refused=refused, notes=[]))

    monkeypatch.setattr(breadth, "compiled", compiled)
    return breadth.sweep([Program("f", what, print, ()) for what in "abc"], ["gfx942"], None, lambda text: None)


def test_what_came_of_each(swept: list[breadth.Row], tmp_path: Path) -> None:
    assert [(r["status"], r["code"]) for r in swept] == [("built", ""), ("refused", "RF497"), ("failed", "RF452")]
    assert breadth.table(swept)[1] == [["f/a", "built"], ["f/b", "refused RF497"], ["f/c", "failed RF452"]]
    (line,) = breadth.kernels(swept)
    assert line[3] == "64" and line[5] == "32" and line[1] == "gfx942"
    assert "| f/c | gfx942 | RF452 | no layout |" in breadth.markdown(swept)


def test_rows_that_stand_are_kept(swept: list[breadth.Row], tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text("".join(json.dumps(r) + "\n" for r in swept[:2]))
    rows = breadth.sweep([Program("f", what, print, ()) for what in "abc"], ["gfx942"], out, lambda text: None)
    assert len(rows) == 3 and breadth.lines(out) == rows
