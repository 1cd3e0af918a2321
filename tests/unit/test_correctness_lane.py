"""The correctness lane: its list, its judge, its supervision, and the whole of it on the CPU in processes without a compiler."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from redfuser import numerics, perturbed
from redfuser.bench.correctness import build, child, digest, run, steady, table
from redfuser.bench.correctness import supervise as supervision
from redfuser.bench.correctness.examine import examine
from redfuser.bench.correctness.judge import judge
from redfuser.cli.correctness import correctness
from redfuser.errors import InputError
from tests.listed import all_programs
from workloads.correctness import In, Program, draw, drawn, draws, find
from workloads.correctness.steps import KINDS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = all_programs()


def named(name: str) -> Program:
    return next(p for p in PROGRAMS if p.name == name)


def test_the_list_covers_what_it_promises() -> None:
    assert len(PROGRAMS) >= 300
    families = Counter(p.family for p in PROGRAMS)
    assert {"mha", "masks", "scored", "sinks", "gqa", "decode", "mla", "differential", "routing", "quant", "quant+product",
            "norms", "softmax", "losses", "entropy", "variance", "inertia", "places", "statistics"} <= set(families)
    assert {"single", "resident", "multi"} <= {p.strategy for p in PROGRAMS}
    assert {i.dtype for p in PROGRAMS for i in p.ins} >= {"f16", "bf16", "f32", "e4m3"}


def test_a_drawn_program_is_what_its_seed_says() -> None:
    """Whatever process asks for it, and by its name alone; between them, programs do everything that a step may do."""
    programs = [drawn.program(seed) for seed in range(5000, 5400)]
    one = programs[7]
    again = find([one.name, PROGRAMS[0].name])
    assert again[one.name].ins == one.ins and again[PROGRAMS[0].name].name == PROGRAMS[0].name
    for x, y in zip(one.fn(*draw(one, "normal")), again[one.name].fn(*draw(one, "normal")), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    for other in ("drawn/something that no seed is called", one.name + ", tanh"):
        with pytest.raises(KeyError):
            find([other])
    done = {w.removesuffix(" over two") for p in programs for w in p.what.partition(": ")[2].split(", ")}
    assert done == {what for table, _, _ in KINDS.values() for what in table}
    assert {i.kind for p in programs for i in p.ins} == {"data", "weight", "keep", "label"}
    assert all(0 not in t.shape for p in programs[:40] for t in p.fn(*draw(p, "normal")))


def test_seeds_take_the_place_of_the_list() -> None:
    listed = CliRunner().invoke(correctness, ["--list", "--seeds", "5000:5003"])
    assert listed.output.splitlines() == [drawn.program(s).name for s in range(5000, 5003)]
    for seeds in ("5000", "5003:5000", "5000:", "-1:3"):
        with pytest.raises(InputError, match="RF194"):
            CliRunner().invoke(correctness, ["--list", "--seeds", seeds], catch_exceptions=False)


@pytest.mark.parametrize("name", ["mha/f16 1xh2 200x333 d64 s/", "quant/f16 33x1000 scale", "inertia/f32 3x500 inertia"])
def test_draws_are_what_they_are_called(name: str) -> None:
    program = named(name)
    again = [draw(program, "normal") for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*again)), "a draw is the same on every machine"
    assert not torch.equal(draw(program, "normal", 1)[0], again[0][0])
    for what in draws(program):
        inputs = dict(zip((i.name for i in program.ins), draw(program, what)))
        special = what.partition(":")
        for key, x in inputs.items():
            odd = x[~x.isfinite()]
            if special[2] == key:
                assert odd.numel() == 1 and str(float(odd)) == special[0]
            else:
                assert odd.numel() == 0 or what in ("spread", "outlier", "huge"), (what, key)


# -- the judge ---------------------------------------------------------------------------------------------------------


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


SOFTMAX = Program("test", "softmax", softmax, (In("x", (4, 65), "f16", scale=3.0),))
TOP = Program("test", "top", lambda x: tuple(torch.topk(torch.softmax(x, -1), 4)), (In("x", (8, 65), "f32", scale=3.0),),
              ranked=lambda x: (x, torch.softmax(x, -1)))


def bad(program: Program, ours: Any) -> set[str]:
    return {b["draw"] for b in examine(program, ours, "cpu")["bad"]}


def test_what_is_right_is_right() -> None:
    assert bad(SOFTMAX, lambda x: torch.softmax(x.float(), -1).half()) == set()
    assert bad(TOP, TOP.fn) == set()


def test_a_wrong_factor_a_lost_nan_and_a_crash_are_found() -> None:
    assert bad(SOFTMAX, lambda x: (torch.softmax(x.float(), -1) * 1.01).half()) >= {"normal", "big", "ties"}
    assert bad(SOFTMAX, lambda x: torch.softmax(x.nan_to_num(0.0), -1)) == {"nan:x", "inf:x", "-inf:x", "outlier"} & bad(
        SOFTMAX, lambda x: torch.softmax(x.nan_to_num(0.0), -1)) | {"nan:x", "inf:x"}
    assert "normal" in bad(SOFTMAX, lambda x: 1 / 0)
    assert "normal" in bad(SOFTMAX, lambda x: softmax(x).float()), "another dtype"


def test_one_step_of_eight_bits_is_found() -> None:
    """A scale off by more than roundings puts elements elsewhere that are at no tie; by one rounding, only those that are."""
    program = next(p for p in PROGRAMS if p.family == "quant" and p.what.endswith(" scale"))

    def hasty(x: torch.Tensor) -> Any:
        s = x.float().abs().amax(-1, keepdim=True) / 448.0
        return (x.float() * (1 / s) * (1 + 1e-4)).to(torch.float8_e4m3fn), s

    assert bad(program, program.fn) == set()
    assert bad(program, hasty) & {"ties", "outlier", "normal"}


def test_places_among_equal_values_are_free_and_others_are_not() -> None:
    def other_order(x: torch.Tensor) -> Any:
        values, places = torch.topk(torch.softmax(x, -1).flip(-1), 4)
        return values, x.shape[-1] - 1 - places

    def next_one(x: torch.Tensor) -> Any:
        values, places = torch.topk(torch.softmax(x, -1), 5)
        return values[..., :4], places[..., 1:]

    assert bad(TOP, other_order) == set()
    assert {"normal", "big"} <= bad(TOP, next_one)
    assert "normal" in bad(TOP, lambda x: (TOP.fn(x)[0], TOP.fn(x)[1][..., :1].expand(-1, 4))), "one place four times"


def test_luck_is_averaged_out_and_a_defect_is_not() -> None:
    """One weight decides the outlier draw: its rounding is lucky now and then, on either side. Ten times the rounding is not."""
    rounded = Program("test", "dominated", lambda p, v: (p * v).sum(-1).half(),
                      (In("p", (1, 4), "f16", "positive"), In("v", (1, 4), "f16")))
    exact = draw(rounded, "outlier")
    truth = numerics.reference(rounded.fn, exact)
    assert not [v for v in judge(rounded.fn(*exact), rounded.fn(*exact), truth, exact, None) if v.why]
    assert "outlier" in bad(rounded, lambda p, v: (p * v).sum(-1).half() * (1 + 20 * 2.0**-11))


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return (torch.softmax((q @ k.mT).float().masked_fill(~keep, -math.inf), -1).to(v.dtype) @ v)


CAUSAL = Program("test", "causal", causal, tuple(In(n, (1, 96, 16), "bf16") for n in "qkv"))
SPECIAL_V = ("nan:v", "inf:v", "-inf:v")


def in_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As a kernel has it: of the keys of a tile of rows, the tiles that its last row sees; of the others nothing."""
    rows = [causal(q[:, : i + 32], k[:, : i + 32], v[:, : i + 32])[:, i:] for i in range(0, 96, 32)]
    return torch.cat(rows, 1)


def test_what_a_mask_hides_is_excused_element_by_element() -> None:
    """Of one column of results, some have the NaN that eager makes of a weight of 0 and others have not."""
    found = examine(CAUSAL, in_tiles, "cpu")
    assert not found["bad"] and 0 < found["exceptions"]["hidden"] < 3 * 96
    assert bad(CAUSAL, lambda q, k, v: causal(q, k, v.nan_to_num(0.0, 0.0, 0.0))) == set(SPECIAL_V), "what is seen is lost"

    def late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The first row that sees each key does not."""
        out, odd = causal(q, k, v), ~v.isfinite()
        without = causal(q, k, torch.where(odd, 0.0, v))
        return torch.where(odd, without, out)

    assert bad(CAUSAL, late) == set(SPECIAL_V)

    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Finite where it may be, and not what is there without the NaN."""
        out, tiled = causal(q, k, v), in_tiles(q, k, v)
        return torch.where(out.isfinite() | ~tiled.isfinite(), out, tiled + 1.0)

    assert bad(CAUSAL, other) == {"nan:v", "-inf:v"}, "the infinity stands among the first keys, which every tile reads"


def test_a_small_weight_hides_nothing() -> None:
    """A weight of 1e-9 is not 0: infinite values that it has must be seen."""
    def small(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(torch.cat([x * 0.0, x * 0.0 - 20.0], -1), -1) * v).sum(-1)

    program = Program("test", "small", small, (In("x", (4, 8), "f32"), In("v", (4, 16), "f32")), only=("inf:v", "nan:v"))
    assert bad(program, lambda x, v: small(x, v.nan_to_num(0.0, 0.0, 0.0))) == {"inf:v", "nan:v"}


def test_exceptions_have_names() -> None:
    x = torch.tensor([1.0])
    eager, truth = torch.tensor([math.inf]), torch.tensor([4.0], dtype=torch.float64)
    v, = judge(torch.tensor([4.0]), eager, truth, (x,), None)
    assert not v.why and v.exceptions == {"as float64": 1}
    v, = judge(torch.tensor([5.0]), eager, truth, (x,), None)
    assert v.why
    v, = judge(torch.tensor([math.nan]), eager, torch.tensor([math.inf]).double(), (x,), None)
    assert not v.why and v.exceptions == {"undefined": 1}
    v, = judge(torch.tensor([math.inf]), torch.tensor([math.nan]), torch.tensor([math.nan]).double(), (x * math.nan,), None)
    assert v.why, "with a NaN in the input there is no such excuse"


# -- supervision -------------------------------------------------------------------------------------------------------


def test_a_result_that_changes_from_run_to_run_is_found() -> None:
    calls = []

    def unsteady(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return x, torch.tensor(0.0 if len(calls) % 20 else -0.0)

    x = torch.tensor([1.0, math.nan])
    assert steady.repeated(lambda x: (x, x.sum()), [x]) == "", "NaN are the same bits"
    assert steady.repeated(unsteady, [x]) == "2 of 49 further runs gave other bits"
    assert steady.unsteady(unsteady, lambda x: x, [x]) == ("3 of 49 further runs gave other bits", False)
    assert steady.unsteady(unsteady, unsteady, [x])[1], "torch's own call changes"


@pytest.mark.parametrize(("log", "found"), [
    ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", ""),
    ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", ""),
    ("========= Invalid __global__ read of size 4\n=========     at cascade_kernel\n========= ERROR SUMMARY: 10 errors\n",
     "ERROR SUMMARY: 10 errors; Invalid __global__ read of size 4"),
    ("", "the tool gave no summary")])
def test_what_a_sanitizer_says(log: str, found: str) -> None:
    assert steady._found([{"program": "p"}], log, 0) == found
    assert steady._found([], log, 86).startswith("the process ended with status 86")


def test_only_what_is_here_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that stands from an earlier table has no file in the folder."""
    rows = [{"program": n, "verdict": "right", "schedules": ["relay"]} for n in ("here", "stands")]
    build.paths(tmp_path, "here")[0].write_bytes(b"")
    monkeypatch.setattr(run, "sanitized", lambda names, tools, *rest: ((n, t, "") for n in names for t in tools))
    found = run.watched(rows, tmp_path, tmp_path / "rows.jsonl", 1, print)
    assert [("sanitized" in r) for r in found] == [True, False]


def test_a_crash_and_a_hang_cost_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "CHILD", "tests.unit.lane_child")
    names = ["a", "crash 1", "b", "hang", "c", "crash 2"]
    answers = {a["program"]: a for a in supervision.supervise("x", names, {}, 2, 2.0)}
    assert set(answers) == set(names)
    assert all(answers[n].get("well") for n in "abc")
    assert "status" in answers["crash 1"]["lost"] and "no answer" in answers["hang"]["lost"]


def test_a_child_ends_behind_an_error_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it runs next fails too, and is right in another process."""
    def broken(program: Program) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    class Ended(Exception):
        pass

    def end(code: int) -> None:
        raise Ended

    names, channel = [p.name for p in PROGRAMS[:2]], io.StringIO()
    monkeypatch.setattr(child.sys, "argv", ["child", "run", "{}"])
    monkeypatch.setattr(child.sys, "stdin", io.StringIO("\n".join(names)))
    monkeypatch.setattr(child, "private_stdout", lambda: channel)
    monkeypatch.setattr(child, "_watch", lambda parent: None)
    monkeypatch.setattr(child, "step", lambda name, options: broken)
    monkeypatch.setattr(child.os, "_exit", end)
    with pytest.raises(Ended):
        child.main()
    begun, answer = channel.getvalue().splitlines()
    assert begun == f"begin {names[0]}" and json.loads(answer)["poisoned"]


def test_what_is_judged_on_a_device_is_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch in the place of a kernel that the trial found wrong was right, and so was its row."""
    monkeypatch.setattr(supervision, "CHILD", "tests.unit.lane_child")
    monkeypatch.setenv("REDFUSER_VERIFY", "1")
    verify = {step: next(supervision.supervise(step, ["a"], {}, 1, 20.0))["verify"] for step in ("build", "run")}
    assert verify == {"build": "1", "run": "0"}
    program = next(p for p in PROGRAMS if p.family == "reduced")
    record = {"refused": ["one"], "strategies": [], "fused": 1, "cascades": 1, "commit": "", "lowering": "", "target": ""}
    answer = {"draws": 1, "bad": [], "ratio": 1.0, "exceptions": {}, "distrusted": ["k2 RF807 normal inputs"]}
    assert run.judged(program, record, answer)["partly"] == ["one", "k2 RF807 normal inputs"]


# -- all of it ---------------------------------------------------------------------------------------------------------


ABSENT = ("tvm", "tilelang", "z3", "rich", "platformdirs", "transformers", "ml_dtypes")


def test_build_here_run_there_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs for the CPU; the run has no compiler, is not repeated, and writes the table."""
    names = ["statistics/f32 9x777 deviation", "routing/f16 65x96x64 k6 one"]
    told: list[str] = []

    def here(step: str, names: list[str], options: dict[str, Any], jobs: int, limit_s: float) -> Any:
        do = child.step(step, options)
        return ({"program": n, **do(named(n))} for n in names)

    monkeypatch.setattr(build, "supervise", here)
    for _ in range(2):
        records = build.build([named(n) for n in names], "cpu", tmp_path, 1, 60, told.append)
        assert [r["status"] for r in records] == ["built", "built"], records
    assert told[-1] == "2 programs, 2 built before"

    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(f"import sys\nfor m in {ABSENT}: sys.modules[m] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "redfuser", "bench", "correctness", "--run", str(tmp_path), "--device", "cpu", "--jobs", "1",
         "--only", ",".join(names)], cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(bare), str(ROOT)])})
    assert done.returncode == 0 and "2 programs: 2 right" in done.stdout, done.stdout + done.stderr
    told.clear()
    assert len(run.run([named(n) for n in names], tmp_path, "cpu", tmp_path / "rows-cpu.jsonl", 1, 60, told.append)) == 2
    assert not told, "judged before"
    head, rows = table.read(tmp_path / "table" / table.JSONL)
    assert head["lowering"] and head["target"] == "cpu" and {r["verdict"] for r in rows} == {"right"}
    assert "| statistics | 1 |" in (tmp_path / "table" / table.MARKDOWN).read_text()

    # the compiler has changed, and gives the same texts but for one program: that one is built again and run again
    programs = [named(n) for n in names]
    artifacts = [build.paths(tmp_path, n)[0] for n in names]
    before = [a.stat().st_mtime_ns for a in artifacts]
    old = build.read(tmp_path, programs[1])
    assert old is not None
    build.paths(tmp_path, names[1])[1].write_text(json.dumps({**old, "runs": "other"}))
    monkeypatch.setattr(build, "key", lambda program, target: "changed")
    records = build.build(programs, "cpu", tmp_path, 1, 60, told.append)
    assert [r["key"] for r in records] == ["changed", "changed"] and "0 built before" in told[0]
    assert [a.stat().st_mtime_ns == t for a, t in zip(artifacts, before)] == [True, False]
    rows = sorted(rows, key=lambda r: names.index(r["program"]))
    rows[1] = {**rows[1], "runs": "other"}
    ran: list[str] = []

    def there(step: str, names: list[str], options: dict[str, Any], jobs: int, limit_s: float) -> Any:
        ran.extend(names)
        return ({"program": n, "draws": 1, "bad": [], "ratio": 1.0, "exceptions": {}} for n in names)

    monkeypatch.setattr(run, "supervise", there)
    again = run.run(programs, tmp_path, "cpu", tmp_path / "rows-again.jsonl", 1, 60, told.append, rows)
    assert ran == [names[1]] and [r["key"] for r in again] == ["changed", "changed"]
    assert again[0]["time"] == rows[0]["time"] and again[0]["draws"] > 1 == again[1]["draws"]
    ran.clear()
    run.run(programs, tmp_path, "cpu", tmp_path / "rows-other.jsonl", 1, 60, told.append, [{**r, "ran": "other"} for r in rows])
    assert ran == names, "other bytes run again"
    # of an earlier table alone: what would be built of the same texts is not built, and does not run
    table.write(tmp_path / "earlier", head, rows)
    monkeypatch.setattr(build, "supervise", here)
    bare = tmp_path / "empty"
    records = build.build(programs, "cpu", bare, 1, 60, told.append, tmp_path / "earlier" / table.JSONL)
    assert [r["status"] for r in records] == ["stands", "built"] and not build.paths(bare, names[0])[0].exists()
    ran.clear()
    again = run.run(programs, bare, "cpu", bare / "rows.jsonl", 1, 60, told.append, rows)
    assert ran == [names[1]] and {**rows[0], "key": "changed"} == again[0]
    alone = run.run(programs, bare, "cpu", bare / "other.jsonl", 1, 60, told.append)
    assert [r["verdict"] for r in alone] == ["not run", "right"], "without the table it says nothing"
    # without a device: what has other texts than what ran is interpreted, and its row says no more than that

    def thought(step: str, names: list[str], options: dict[str, Any], jobs: int, limit_s: float) -> Any:
        do = child.step(step, options)
        return ({"program": n, **(do(named(n)) if n == names[0] else {"draws": 1, "bad": [], "ratio": 1.0, "exceptions": {}})}
                for n in names)

    monkeypatch.setattr(run, "supervise", thought)
    partly = run.interpret_all(programs, "cpu", (), 1, 60, told.append, tmp_path / "earlier" / table.JSONL)
    assert [r["verdict"] for r in partly] == ["right", "right in the interpreter"] and partly[0]["time"] == rows[0]["time"]
    assert "1 right, 1 right in the interpreter" in table.summary(partly) and "the device ran other" in table.markdown(head, partly)
    ran.clear()
    monkeypatch.setattr(run, "supervise", there)
    monkeypatch.setattr(digest, "runtime", lambda: "changed")
    run.run(programs, tmp_path, "cpu", tmp_path / "rows-third.jsonl", 1, 60, told.append, rows)
    assert ran == names, "another runtime runs everything again"


def test_every_row_says_what_lowering_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of programs after a refusal; rows of two lowerings do not pass for one."""
    answers = [{"status": "refused", "code": "RF490", "why": "w"}, {"status": "built", "code": "", "why": ""}, {"lost": "l"}]

    def here(step: str, names: list[str], options: dict[str, Any], jobs: int, limit_s: float) -> Any:
        return ({"program": n, **a} for n, a in zip(names, answers, strict=True))

    monkeypatch.setattr(build, "supervise", here)
    records = build.build(PROGRAMS[:3], "cpu", tmp_path, 1, 60, lambda text: None)
    assert {r["lowering"] for r in records} == {digest.lowering()} and len({r["commit"] for r in records}) == 1
    rows = [run.unbuilt(p, r) for p, r in zip(PROGRAMS, records)] + [run.unbuilt(PROGRAMS[3], None)]
    assert table.heading("cpu", rows)["lowering"] == digest.lowering()
    assert table.heading("cpu", [*rows, {**rows[0], "lowering": ""}])["lowering"] == f"{digest.lowering()} unknown"


def test_the_table_names_what_is_not_right() -> None:
    rows = [{"program": f"a/{v}", "family": "a", "verdict": v, "code": c, "why": "w | x", "draws": 1, "ratio": 1.0,
             "strategies": ["single"], "partly": [], "exceptions": {"undefined": 2}}
            for v, c in (("right", ""), ("wrong", ""), ("refused", "RF490"), ("failed to build", "RF452"), ("not run", ""))]
    head = {"machine": {"versions": {"torch": "2"}, "device": "d", "driver": ""}, "time": "t", "lowering": "l", "commit": "c",
            "target": "sm_90a"}
    text = table.markdown(head, rows)
    assert "| a | 1 |  |  | 1 | 1 | 1 | 1 |" in text and "RF490 1" in text and "w \\| x" in text and "undefined 5" not in text


def test_digits_that_the_program_cancels_are_excused_and_counted() -> None:
    """The logarithm of a sum that is nearly 1: three roundings of the sum are no defect, where eager happens to be nearer; a sum
    that is off by more is, and so is anything where nothing cancels."""
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.log2(x.sum(-1, keepdim=True)) if x.shape[-1] > 1 else x * 3

    x = torch.full((1, 32), 1 / 32) + torch.linspace(-1e-3, 1e-3, 32)
    eager, truth = program(x), program(x.double())
    near = [y for y, in perturbed.moved(program, (x,))]
    off = max(float((y - truth).abs()) for y in near)
    ours = (truth + 0.9 * off).float()
    v, = judge(ours, truth.float(), truth, (x,), None, lambda: [[y] for y in near])
    assert not v.why and v.exceptions == {"cancelled": 1}
    assert judge(ours, truth.float(), truth, (x,), None)[0].why
    assert judge((truth + 9 * off).float(), eager, truth, (x,), None, lambda: [[y] for y in near])[0].why
    plain = torch.rand(64, 1)
    moved = [[y] for y, in perturbed.moved(program, (plain,))]
    assert judge(program(plain) * (1 + 1e-5), program(plain), program(plain.double()), (plain,), None, lambda: moved)[0].why
