"""Rows, views and comparisons of measurements; and a real run on the CPU in a process without any compiler."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from redfuser import timing
from redfuser.bench import rows, written
from redfuser.bench.baselines import BASELINES, artifact_path, baseline
from redfuser.bench.runner import Options, run
from redfuser.cli.main import cli
from redfuser.errors import InputError
from tests.listed import all_cases
from workloads.case import Case

ROOT = Path(__file__).resolve().parents[2]


def smoke() -> list[Case]:
    return [c for c in all_cases() if "smoke" in c.sets]


def row(case: str, variant: str, ms: float, **changes: Any) -> rows.Row:
    """A measured row with a one per cent spread."""
    times = {"p50": ms, "p20": ms * 0.995, "p80": ms * 1.005, "samples": 50}
    return {"schema": 1, "case": case, "variant": variant, "status": "ok", "why": "", "passed": True, "events": times,
            "graph": None, "error": {"ratio": 0.8}, "flags": [], "floor_ms": 0.5, "key": f"{case}{variant}",
            "machine": {"device": "a GPU", "driver": "1", "versions": {"torch": "2"}, "commit": "c"}, **changes}


def case_named(name: str) -> Case:
    return next(c for c in all_cases() if str(c) == name)


# -- workloads ---------------------------------------------------------------------------------------------------------


def test_paper_shapes_are_all_there() -> None:
    names = {c.name for c in all_cases() if c.workload == "mha" and "paper" in c.sets}
    assert names == {f"H{i}" for i in range(1, 10)}
    assert len({str(c) for c in all_cases()}) == len(all_cases())


def test_floors_agree_with_the_published_ones() -> None:
    """Operations and bytes of H1 to H9 give the floors of the workload table, milliseconds on an H200 of 790 TFLOP/s. (What
    matrix units were since seen to reach, and what is the roof, is more.)"""
    from redfuser.bench.roof import KNOWN, Roof

    published = {"H1": 0.0217, "H2": 0.0326, "H3": 0.0435, "H4": 0.0108, "H5": 0.0144, "H6": 0.0180, "H7": 0.2311, "H8": 0.4620,
                 "H9": 0.9239, "causal-8192": 0.696}
    for name, floor in published.items():
        c = case_named(f"mha/{name}")
        assert Roof(4.65e12, {"f16": 790e12}, "published").floor_ms(c.flops, c.bytes, "f16") == pytest.approx(floor, rel=0.02), name
    assert KNOWN["NVIDIA H200"].rates["f16"] >= 790e12


@pytest.mark.parametrize("case", smoke(), ids=str)
def test_inputs_are_fresh_and_a_sample_matches_its_part(case: Case) -> None:
    a, b = case.inputs("cpu", 0), case.inputs("cpu", 1)
    assert not all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert all(x.float().count_nonzero() > 0.9 * x.numel() for x in a if x.is_floating_point())
    with torch.no_grad():
        whole = case.pick(case.build()(*a))
        part = (case.sample_build or case.build)()(*case.sample(a))
    from redfuser.numerics import tensors

    for x, y in zip(tensors(whole), tensors(part), strict=True):
        torch.testing.assert_close(x, y)


def test_what_is_not_drawn_is_cleared() -> None:
    """torch repeats a truncated draw until it is in its bounds: memory as it is found would never be."""
    from workloads.models.common import Undrawn

    found = torch.full((8, 8), 1e9)
    with Undrawn():
        torch.nn.init.normal_(found)
    assert not found.any()


def test_the_sample_of_a_huge_case_is_one_group_of_heads() -> None:
    from workloads.attention import make
    from workloads.case import Attention

    big = case_named("attention/alibi-prefill-32768")
    assert big.sample_note == "heads 0:1 of batch 0"
    spec = Attention(8, 2, 0.3, causal=True, alibi=True)
    small = make("attention", "x", spec, 1, 24, 24, 16)
    huge = make("attention", "x", spec, 1, 1 << 14, 1 << 14, 16)  # its sample and pick, applied to the small inputs
    args = small.inputs("cpu", 0)
    assert huge.sample_build is not None
    with torch.no_grad():
        torch.testing.assert_close(huge.pick(small.build()(*args)), huge.sample_build()(*huge.sample(args)))


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_round_trip_and_a_cut_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.jsonl"
    rows.append(path, [row("a", "eager", 1.0)])
    with path.open("a") as f:
        f.write('{"schema": 1, "ca')
    assert [r["case"] for r in rows.read(path)] == ["a"]
    (tmp_path / "bad.jsonl").write_text("no\n{}\n")
    with pytest.raises(InputError, match="RF196"):
        rows.read(tmp_path / "bad.jsonl")


def test_table_shows_the_best_configuration_losses_and_what_is_missing() -> None:
    measured = [row("mha/H1", "redfuser", 1.0), row("mha/H1", "eager", 2.0), row("mha/H1", "handwritten:a", 0.9),
                row("mha/H1", "handwritten:b", 0.8), row("mha/H2", "redfuser", 1.0), row("mha/H2", "eager", 0.5),
                row("mha/H2", "flash", 0, status="missing", why="no GPU", events=None, passed=None, error=None)]
    columns, cells = rows.table(measured)
    assert columns == ["case", "floor", "redfuser", "% roof", "err x", "eager", "handwritten", "flash"]
    assert cells[0] == ["mha/H1", "0.5000", "1.0000", "50", "0.80", "2.0000 (2.00x)", "0.8000 (0.80x)", ""]
    assert cells[1][-1] == "missing"
    notes = "\n".join(rows.footnotes(measured))
    assert "1.00x over eager, geometric mean of 2, slower on 1: mha/H2" in notes
    assert "flash: missing: no GPU  (mha/H2)" in notes
    assert "| mha/H1 | 0.5000 |" in written.markdown(measured)


def test_a_wrong_result_is_marked_in_the_table() -> None:
    _, cells = rows.table([row("a", "redfuser", 1.0, passed=False)])
    assert "WRONG" in cells[0][2]


def test_comparison_needs_a_difference_beyond_the_spread() -> None:
    old = [row("a", "redfuser", 1.0), row("b", "redfuser", 1.0), row("c", "redfuser", 1.0), row("d", "redfuser", 1.0)]
    wide = {"p50": 1.2, "p20": 0.9, "p80": 1.5, "samples": 9}
    new = [row("a", "redfuser", 1.2), row("b", "redfuser", 0.8), row("c", "redfuser", 1.01),
           row("d", "redfuser", 1.2, events=wide)]
    assert [v for *_, v in rows.compare(old, new)] == ["slower", "faster", "same", "unclear"]


# -- running -----------------------------------------------------------------------------------------------------------


def test_percentiles() -> None:
    t = timing.summarise([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (t.p50, t.p20, t.p80, t.samples) == (3.0, 2.0, 5.0, 5)


def test_a_wrong_and_a_crashing_variant_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that computes something else is measured and marked; one that raises becomes a row; the rest goes on."""
    monkeypatch.setattr("redfuser.bench.baselines.BASELINES", dict(BASELINES))
    monkeypatch.setattr("redfuser.bench.runner.BASELINES", registry := dict(BASELINES))

    def wrong(case: Case, device: str, artifacts: Path | None) -> dict[str, Any]:
        return {"wrong": lambda q, k, v: case.build()(q, k, v) * 1.05}

    def crashing(case: Case, device: str, artifacts: Path | None) -> dict[str, Any]:
        return {"crashing": lambda q, k, v: 1 / 0}

    registry.update(wrong=wrong, crashing=crashing)
    assert baseline("again")(wrong) is wrong
    block, = run([case_named("mha/smoke-64")], Options(("eager", "wrong", "crashing", "cudnn"), budget_s=0.01))
    by = {r["variant"]: r for r in block}
    assert by["eager"]["passed"] and by["eager"]["error"]["ratio"] <= 1
    assert by["wrong"]["passed"] is False and "outside the numerics rule" in " ".join(by["wrong"]["flags"])
    assert by["crashing"]["status"] == "failed" and "ZeroDivisionError" in by["crashing"]["why"]
    assert by["cudnn"]["status"] == "missing"


def test_cases_made_ready_together_are_timed_one_by_one_and_one_that_dies_is_a_row(tmp_path: Path) -> None:
    from redfuser.bench import together

    told: list[str] = []
    cases = [case_named("mha/smoke-64"), case_named("mha/smoke-decode")]
    blocks = list(together.run(cases, Options(("eager", "cudnn"), budget_s=0.01), 2, 60.0, told.append))
    assert [[(r["case"], r["variant"], r["status"]) for r in b] for b in blocks] == [
        [(str(c), "cudnn", "missing"), (str(c), "eager", "ok")] for c in cases]
    assert told == [f"timing {c}" for c in cases]
    block, = together.run(cases[:1], Options(("eager",), device="no such device", budget_s=0.01), 1, 60.0)
    assert [r["status"] for r in block] == ["failed"] and "its process ended" in block[0]["why"]


def test_bars_say_what_is_held_and_missed_and_a_wrong_result_holds_none() -> None:
    from redfuser.bench.written import means, verdicts
    from workloads.bars import BEST, PEAK, RATE, ROOF, Bar

    group = {"redfuser": row("m/a", "redfuser", 1.0, flops=450e9, peak_bytes=10), "eager": row("m/a", "eager", 3.0),
             "inductor": row("m/a", "inductor", 1.2, peak_bytes=40)}
    slow = {"redfuser": row("m/b", "redfuser", 2.0), "inductor": row("m/b", "inductor", 1.2)}
    cases = {"m/a": group, "m/b": slow, "other/a": group}
    asked = [Bar(("m/*",), "inductor", 1.0, 0.9), Bar(("m/a",), ROOF, 0.95, or_best=True), Bar(("m/a",), RATE, 450),
             Bar(("m/a",), PEAK, 5), Bar(("m/b",), BEST, 0.5), Bar(("m/a",), "flash", 1.0)]
    found = {(v.case, v.asked.split(" (")[0]): (v.found, v.held) for v in verdicts(asked, cases)}
    assert found == {("m/a", "1x inductor"): (1.2, True), ("m/a", "0.95 of the roof"): (1.2, True), ("m/a", "450 TFLOP/s"): (450, True),
                     ("m/a", "5x peak memory"): (4, False), ("m/a", "1x flash"): (None, False), ("m/b", "1x inductor"): (0.6, False),
                     ("m/b", "0.5x best"): (0.6, True)}
    mean, = means(asked, cases)
    assert mean.found == pytest.approx((1.2 * 0.6) ** 0.5) and not mean.held
    wrong = {"m/b": {**slow, "redfuser": row("m/b", "redfuser", 0.1, passed=False)}}
    assert all(v.found is None for v in verdicts(asked, wrong))


def test_every_bar_speaks_of_a_case() -> None:
    from redfuser.bench.written import speaks
    from workloads.bars import BARS

    names = [str(c) for c in all_cases()]
    assert not [b for b in BARS if not any(speaks(b, n) for n in names)]


def test_the_roof_is_measured_when_nothing_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One H100's products were measured at 268 TFLOP/s while another process compiled beside it."""
    from redfuser.bench import runner
    from redfuser.bench.roof import Roof

    mine: list[bool] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        mine.append(True)
        yield
        mine.append(False)

    def roof(device: str) -> Roof:
        asked.append(bool(mine and mine[-1]))
        return Roof(1e18, {}, "made up")

    asked: list[bool] = []
    monkeypatch.setattr(runner, "roof", roof)
    (block,) = run([case_named("mha/smoke-64")], Options(("eager",), budget_s=0.01), turn=turn)
    assert asked[0] and {r["roof"] for r in block} == {"made up"} and all(r["floor_ms"] for r in block)


def test_a_time_below_the_floor_is_an_error_and_no_figure() -> None:
    from redfuser.bench.runner import _below_the_roof

    fast, slow = _below_the_roof(row("m", "redfuser", 0.4), 0.5), _below_the_roof(row("m", "redfuser", 0.6), 0.5)
    assert (fast["status"], slow["status"]) == ("error", "ok") and "125 %" in fast["why"]
    assert rows.best_ms(fast) is None and rows.table([fast])[1][0][2] == "error"


def test_markdown_has_a_table_for_each_family_with_its_bars_and_without_what_cannot_be_compared() -> None:
    from redfuser.bench.written import markdown

    missing = row("moe/R1", "flash", 0, status="missing", why="not an attention case")
    text = markdown([row("mha/H1", "redfuser", 1.0), row("mha/H1", "cudnn", 1.07), row("moe/R1", "redfuser", 1.0),
                     row("moe/R1", "inductor", 1.4), missing])
    assert "## mha" in text and "| case | floor | redfuser | % roof | err x | inductor | launches | bars |" in text
    assert "1.05x cudnn: 1.07 held" in text and "geomean 1.1x cudnn: 1.07 MISSED" in text and "1.5x inductor: 1.4 MISSED" in text
    assert "1 of 2 bars are held; missed: moe/R1 1.5x inductor: 1.4." in text and "not an attention case" in text


def test_pictures_show_losses_left_of_one_and_shares_under_the_roof(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    from redfuser.bench import plot

    def boxes(picture: plot.Canvas, colour: str) -> list[tuple[float, float]]:
        """Left and right of what is drawn in a colour, below the legend."""
        found = [n.attrib for n in ElementTree.fromstring(picture.svg()) if n.get("fill") == colour and float(n.get("y", 0)) > 50]
        return [(float(b["x"]), float(b["x"]) + float(b["width"])) for b in found]

    fast = {"redfuser": row("m/a", "redfuser", 1.0, flops=64, bytes=1), "eager": row("m/a", "eager", 4.0)}
    slow = {"redfuser": row("m/<b>", "redfuser", 1.0, flops=64, bytes=1), "eager": row("m/<b>", "eager", 0.25)}
    wins, both = plot.speedups("m", {"m/a": fast}), plot.speedups("m", {"m/a": fast, "m/<b>": slow})
    assert wins is not None and both is not None and plot.speedups("m", {"m/a": {"eager": fast["eager"]}}) is None
    (axis, _), = boxes(wins, plot.BLACK)
    assert all(left == axis < right for left, right in boxes(wins, plot.COLOURS[0]))
    (axis, _), = boxes(both, plot.BLACK)
    gain, loss = boxes(both, plot.COLOURS[0])
    assert gain[0] == axis == loss[1] and loss[0] < axis < gain[1]
    files = plot.write([*fast.values(), *slow.values()], tmp_path)
    assert [f.name for f in files] == ["speedup-m.svg", "roofline.svg"]
    assert all(ElementTree.parse(f).getroot().get("width") for f in files)


def test_launches_are_told_apart_and_the_rest_is_named() -> None:
    from redfuser.bench.launches import sorted_out

    gelu = "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}>"
    seen = sorted_out(["cascade_kernel", "nvjet_sm90_hsh_256x128", "triton_poi_fused_gelu", gelu, gelu, "Memset (Device)"],
                      frozenset({"cascade_kernel"}))
    assert (seen.count, seen.made, seen.library) == (6, 2, 1) and seen.rest == {"GeluCUDAKernelImpl": 2, "Memset (Device)": 1}
    other = {"count": 9, "made": 9, "library": 0, "rest": {}}
    from dataclasses import asdict

    notes = "\n".join(rows.footnotes([row("m", "redfuser", 1.0, launches=asdict(seen)), row("m", "inductor", 1.0, launches=other)]))
    assert "m: launches 6, of them 2 ours, 1 a library's, 2 GeluCUDAKernelImpl, 1 Memset (Device); inductor 9" in notes


def test_weights_are_drawn_anew_and_are_the_same_each_time() -> None:
    from workloads.models.common import drawn

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.Conv1d(96, 8, 3))

    a, b = drawn(make, "f16"), drawn(make, "f16")
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert x.dtype == torch.float16 and torch.equal(x, y) and x.unique().numel() > 1
    assert 0.9 < float(a[0].weight.float().std() * 8) < 1.1 and 0.9 < float(a[2].weight.float().std() * 288 ** 0.5) < 1.1
    assert abs(float(a[1].weight.float().mean()) - 1) < 0.02


def test_artifacts_have_stable_names(tmp_path: Path) -> None:
    assert artifact_path(tmp_path, case_named("mha/H1")).name == "mha-H1.rf"


ABSENT = ("tvm", "tilelang", "z3", "rich", "platformdirs", "transformers")
BLOCK = f"import sys\nfor m in {ABSENT}: sys.modules[m] = None\n"


def test_run_needs_no_compiler_and_resumes(tmp_path: Path) -> None:
    """As on a GPU machine that has torch and click only: run, append, run again with --resume, report."""
    out = tmp_path / "out.jsonl"

    arguments = ("bench", "run", "mha", "--shapes", "smoke", "--baseline", "eager,flash,cudnn", "--no-ours", "--device", "cpu",
                 "--budget", "0.01", "--json", str(out), "--resume")
    code = f"{BLOCK}sys.argv = ['redfuser', *{list(arguments)!r}]\nfrom redfuser.cli.main import main\nmain()"
    first = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert first.returncode == 0, first.stderr
    assert "mha/smoke-decode" in first.stdout and "cudnn: missing: needs a CUDA GPU" in first.stdout
    assert "[3/3]" in first.stderr and "[3/3]" not in first.stdout
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert len(lines) == 9 and all(r["passed"] for r in lines if r["status"] == "ok")
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 0 and len(out.read_text().splitlines()) == 9
    assert "| mha/smoke-64 |" in CliRunner().invoke(cli, ["bench", "report", str(out), "--markdown"]).stdout


class Saved(torch.nn.Module):
    """A stand-in for a compiled model: constants as buffers, saved as they are."""

    def __init__(self, constants: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def save(self, path: str) -> None:
        torch.save(dict(self.named_buffers()), path)

    def own(self, buffer: str, tensor: torch.Tensor) -> None:
        setattr(self, buffer, tensor)


def test_weights_stay_behind_and_are_filled_in_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import redfuser
    from redfuser.bench.thin import load_thin, save_thin
    from redfuser.errors import ArtifactError

    module = torch.nn.Linear(256, 256)
    derived = torch.randn(7)
    weight = module.weight.detach().clone()
    saved = Saved({"c_w": module.weight.detach(), "c_bias": module.bias.detach(), "c_derived": derived})
    path = save_thin(saved, module, tmp_path / "m.rf")
    assert path.stat().st_size < 10_000 < weight.nbytes
    assert torch.equal(module.weight, weight), "the module's own weights were touched"

    monkeypatch.setattr(redfuser, "load", lambda p: Saved(torch.load(p)), raising=False)
    other = torch.nn.Linear(256, 256)
    loaded = load_thin(path, other)
    assert torch.equal(loaded.c_w, other.weight) and torch.equal(loaded.c_bias, other.bias)
    assert torch.equal(loaded.c_derived, derived)
    with pytest.raises(ArtifactError, match="RF604"):
        load_thin(path, torch.nn.Linear(8, 8))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ArtifactError, match="RF601"):
        load_thin(path, other)
