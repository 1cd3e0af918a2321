"""`bench suite`: sizes that fit, rows that say what happened, and reports that are held against what ran."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from redfuser.bench.suite import cases, problem, run
from redfuser.bench.suite.shrink import shrunk, smaller
from redfuser.cli.bench import bench
from redfuser.errors import InputError
from redfuser.report import Report
from redfuser.reported import CascadeReport, Reason, Step

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))

    def forward(self, x):
        return {result}

batch_size = 4096
dim = 3 * 1024
width = dim

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
"""


def written(folder: Path, name: str, result: str) -> Path:
    path = folder / "level1" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROBLEM.replace("{result}", result))
    return path


@pytest.mark.parametrize(("number", "limit", "less"), [(768, 128, 96), (8205, 512, 547), (65535, 1024, 257), (31, 16, 31), (16, 16, 16)])
def test_numbers_keep_what_they_divided(number: int, limit: int, less: int) -> None:
    assert smaller(number, limit) == less


def test_only_the_top_of_a_module_is_smaller() -> None:
    text = shrunk("batch_size = 64\nwide = (4096, 3)\nflag = True\neps = 1e-5\ndef f():\n    return 4096\n", 64, 2)
    assert text.split("\n") == ["batch_size = 2", "wide = (64, 3)", "flag = True", "eps = 1e-05", "", "def f():", "    return 4096"]
    assert shrunk("batch = 4096", 64, None) == "batch = 64"


def test_a_problem_is_as_large_as_may_be_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "1_scale", "x * self.scale")
    assert problem.load(path).args[0].shape == (2, 3 * 1024)
    monkeypatch.setattr(problem, "ELEMENTS", 1 << 10)  # inputs and results: 4 rows of 3 * 64
    assert (found := problem.load(path)).args[0].shape == (2, 3 * 64) and found.limit == 64
    square = written(tmp_path, "2_square", "x + x.T")  # an axis has to be as long as the batch
    square.write_text(square.read_text().replace("4096", "3 * 1024"))
    assert problem.load(square).args[0].shape == (3 * 16, 3 * 16)


def test_a_row_of_a_problem(tmp_path: Path) -> None:
    row = problem.one(written(tmp_path, "3_softmax", "torch.softmax(x * self.scale, -1)"), "cpu", "sm_90a")
    assert (row["status"], row["found"], row["fused"], row["untrue"]) == ("ok", 1, 1, []), row
    assert row["ran"] == {} and row["eager"] == {"softmax": 1} and row["sm_90a"]["fused"] == 1
    assert problem.one(written(tmp_path, "4_none", "x.nothing()"), "cpu", "sm_90a")["status"] == "broken"
    cells = dict(zip(*(lambda t: (t[0], t[1][0]))(run.table([row], "sm_90a")), strict=True))
    assert (cells["problem"], cells["equal"], cells["note"]) == ("level1/3_softmax", "yes", "")


def test_a_wrong_result_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import redfuser

    class Off(torch.nn.Module):
        report, kernels = Report("m", "cpu"), {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1.01

    monkeypatch.setattr(redfuser, "compile", lambda *a, **k: Off())
    monkeypatch.setattr(redfuser, "explain", lambda *a, **k: Report("m", "sm_90a"))
    row = problem.one(written(tmp_path, "5_same", "x"), "cpu", "sm_90a")
    assert row["status"] == "wrong" and "FAILED" in row["why"]
    monkeypatch.setattr(redfuser, "compile", lambda *a, **k: {}["no"])
    assert problem.one(written(tmp_path, "5_same", "x"), "cpu", "sm_90a")["status"] == "failed"


def ran(**calls: int) -> problem.Ran:
    mode = problem.Ran()
    mode.seen.update({name.replace("__", "."): n for name, n in calls.items()})
    return mode


FUSED = CascadeReport("softmax.0", (), True, kernel="k0")
KEPT = CascadeReport("softmax.0", (), False, Reason("RF301", "aten.softmax.int"))


@pytest.mark.parametrize(("report", "ours", "kernels", "untrue"), [
    ({"cascades": (FUSED,)}, {"redfuser__k0": 1}, 1, ""),
    ({"cascades": (FUSED,)}, {}, 1, "1 kernels, 0 of them called"),
    ({"cascades": (FUSED,)}, {}, 0, "1 cascades fused, no kernel called"),
    ({"cascades": (FUSED,)}, {"redfuser__k0": 1, "aten___softmax__default": 1}, 1, "torch ran 1 softmax"),
    ({"cascades": (KEPT,), "steps": (Step("", "aten.softmax.int"),)}, {"aten___softmax__default": 1}, 0, ""),
    ({}, {"aten__sum__dim_IntList": 1}, 0, "torch ran 1 sum, and every operation is said to be in a kernel"),
    ({"steps": (Step("", "aten.sum.dim_IntList"),)}, {"aten__sum__dim_IntList": 1, "aten__native_batch_norm__default": 2}, 0, ""),
    ({}, {}, 0, "eager runs 1 softmax, which is in no cascade and was not run"),
])
def test_a_report_is_held_against_what_ran(report: Any, ours: dict[str, int], kernels: int, untrue: str) -> None:
    eager = ran(aten___softmax__default=1)
    found = list(problem.contradictions(Report("m", "cpu", **report), ran(**ours), eager, kernels))
    assert (untrue in found[0]) if untrue else not found


def test_rows_that_stand_are_kept_and_silence_has_an_end(tmp_path: Path) -> None:
    path = written(tmp_path, "6_slow", "x")
    path.write_text("while True:\n    pass\nclass Model: pass\n")
    found = run.alone(path, "cpu", "sm_90a", 0.2)
    assert found["status"] == "lost" and "0.2 s" in found["why"]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"problem": "6_slow", "level": "level1", "target": "cpu", **found}) + "\n")
    done = CliRunner().invoke(bench, ["suite", str(tmp_path), "--json", str(file), "--markdown", "-q"])
    assert done.exit_code == 0 and "* all: 1 problems, 1 lost" in done.output and "| level1/6_slow |" in done.output
    with pytest.raises(InputError, match="no problem"), warnings.catch_warnings():
        run.problems(tmp_path, "level2/*")


def test_problems_are_cases_of_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as the bounds allow, built and run like the workloads: each in a process that knows it by its file."""
    path = written(tmp_path, "7_softmax", "torch.softmax(x * self.scale, -1)")
    written(tmp_path, "8_none", "x.nothing()")
    whole, = cases.cases(tmp_path, "")
    assert whole.params == {"limit": 0, "batch": 0} and whole.bytes == 4 * (2 * 4096 + 1) * 3 * 1024
    monkeypatch.setattr(cases, "ELEMENTS", 1 << 21)
    found, = cases.cases(tmp_path, "level1/*")
    assert found.inputs("cpu", 0)[0].shape == (64, 3 * 1024) and found.params["batch"] == 64 and found.source == path
    assert not torch.equal(found.inputs("cpu", 0)[0], found.inputs("cpu", 1)[0])
    monkeypatch.setattr(cases, "ELEMENTS", 1 << 28)
    path.write_text(path.read_text().replace("4096", "8"))
    built, rows = tmp_path / "built", tmp_path / "rows.jsonl"
    assert CliRunner().invoke(bench, ["build", str(tmp_path), "--target", "cpu", "-o", str(built), "-q"]).exit_code == 0
    done = CliRunner().invoke(bench, ["run", str(tmp_path), "--built", "--artifacts", str(built), "--device", "cpu", "--jobs", "2",
                                      "--budget", "0.01", "--json", str(rows), "-q"])
    assert done.exit_code == 0, done.output
    said = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(r["case"], r["variant"], r["passed"]) for r in said] == [("level1/7_softmax", v, True) for v in ("redfuser", "eager")]
