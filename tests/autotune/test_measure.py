"""Measuring: what is done is kept, what costs a process is passed over and told, what is spent is left for the next time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from redfuser.autotune import adopt, child, folder, measure
from redfuser.autotune.folder import Built, Kernel, Manifest
from redfuser.autotune.measure import InChild, Lost, Measurement
from redfuser.autotune.records import Choice
from redfuser.errors import TuningError
from tests.autotune.planted import H200, sample


def kernel(of: str, *names: str, seconds: float = 1e-5) -> Kernel:
    built = tuple(Built(n, Choice("single", 1, {"rows": i}), seconds, True, text=n) for i, n in enumerate(names))
    return Kernel(of * 4, of, "f16[8]", "sm_90a", 1, built, command=f"redfuser tune {of}")


def prepared(path: Path, *kernels: Kernel) -> Path:
    folder.write(path, Manifest("sm_90a", "quick", kernels, {"tilelang": "0.1.15"}))
    for k in kernels:
        folder.place(path, k).mkdir(parents=True, exist_ok=True)
        (folder.place(path, k) / folder.REGION).write_text("def forward(x):\n    return (x,)\n")
    return path


class Fake:
    """A measurer with a table of milliseconds; asked remembers of what."""

    def __init__(self, ms: Mapping[str, float], lost: Mapping[str, str] | None = None) -> None:
        self.ms, self.lost, self.asked = ms, dict(lost or {}), list[tuple[str, tuple[str, ...]]]()

    def __call__(self, path: Path, k: Kernel, without: Mapping[str, str], effort: str) -> Measurement:
        self.asked.append((k.of, tuple(without)))
        left = [c.id for c in k.candidates if c.id not in without]
        for name in left:
            if name in self.lost:
                raise Lost(name, self.lost[name])
        return Measurement({n: sample(self.ms[n]) for n in ("unfused", *left)})


def run(path: Path, measurer: measure.Measurer, budget: float = 60.0, told: list[str] | None = None, **how: object) -> None:
    list(measure.run(path, measurer, H200, "quick", budget, (told if told is not None else []).append, {"torch": "2"}, **how))


def test_the_costliest_first_until_the_time_is_spent_and_the_rest_the_next_time(tmp_path: Path) -> None:
    path = prepared(tmp_path, kernel("small", "0"), kernel("large", "0", seconds=1e-3), kernel("middle", "0", seconds=1e-4))
    fake, told, clock = Fake({"unfused": 1.0, "0": 0.5}), list[str](), iter([0.0, 0.0, 50.0, 100.0])
    run(path, fake, told=told, clock=lambda: next(clock))
    assert [of for of, _ in fake.asked] == ["large", "middle"] and "RF709" in told[-1] and "1 of 3" in told[-1]
    _, found, none = adopt.adopted(path)
    assert {r.of for r in found} == {"large", "middle"} and none == ["small: not measured"], "what is done can be used"
    run(path, fake)
    assert [of for of, _ in fake.asked] == ["large", "middle", "small"]


def test_an_interrupt_keeps_what_is_done_and_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    path = prepared(tmp_path, kernel("first", "0", seconds=1.0), kernel("second", "0"))
    fake = Fake({"unfused": 1.0, "0": 0.5})

    def interrupted(p: Path, k: Kernel, without: Mapping[str, str], effort: str) -> Measurement:
        if k.of == "second":
            raise KeyboardInterrupt
        return fake(p, k, without, effort)

    with pytest.raises(KeyboardInterrupt):
        run(path, interrupted)
    with (path / folder.MEASURED).open("a") as file:
        file.write('{"kernel": "secondsecond')
    assert [r.of for r in adopt.adopted(path)[1]] == ["first"]


def test_another_device_or_another_candidate_is_measured_anew(tmp_path: Path) -> None:
    path, fake = prepared(tmp_path, kernel("a", "0")), Fake({"unfused": 1.0, "0": 0.5, "1": 0.4})
    run(path, fake)
    list(measure.run(path, fake, "NVIDIA H100 80GB HBM3", "quick", 60.0))
    assert len(fake.asked) == 2 and {r.part for r in adopt.adopted(path)[1]} == {"H200", "H100"}
    prepared(path, kernel("a", "0", "1"))
    assert adopt.adopted(path)[1:] == ([], ["a: not measured"])
    run(path, fake)
    assert len(fake.asked) == 3


def test_a_lost_candidate_is_not_tried_again_by_the_next_run_either(tmp_path: Path) -> None:
    path, told = prepared(tmp_path, kernel("a", "0", "1", "2")), list[str]()
    fake = Fake({"unfused": 1.0, "0": 0.5, "1": 0.1, "2": 0.6}, {"1": "it did not end within 20 s"})
    run(path, fake, told=told)
    assert fake.asked == [("a", ()), ("a", ("1",))] and any("RF710" in t and "did not end" in t for t in told)
    only_lost = [line for line in (path / folder.MEASURED).read_text().splitlines() if '"lost"' in line]
    (path / folder.MEASURED).write_text("\n".join(only_lost) + "\n")  # as if the run had ended there
    run(path, fake)
    assert fake.asked[2:] == [("a", ("1",))]
    made, = adopt.adopted(path)[1]
    assert made.failed == 1 and made.candidates == 2 and made.choice.config == {"rows": 0}


def test_a_kernel_is_given_up_before_it_costs_everything(tmp_path: Path) -> None:
    names = [str(i) for i in range(9)]
    path, fake = prepared(tmp_path, kernel("a", *names)), Fake({}, dict.fromkeys(names, "died"))
    run(path, fake)
    assert len(fake.asked) == measure.LOST_MOST and adopt.adopted(path)[1] == []


def test_a_decision_and_its_table(tmp_path: Path) -> None:
    path = prepared(tmp_path, kernel("fused", "0", "1"), kernel("slow", "2", "3"), kernel("tie", "4"))
    run(path, Fake({"unfused": 1.0, "0": 0.6, "1": 0.5, "2": 1.5, "3": 1.2, "4": 0.995}))
    _, found, _ = adopt.adopted(path)
    by = {r.of: r for r in found}
    assert {of: r.fuse for of, r in by.items()} == {"fused": True, "slow": False, "tie": False}
    one = by["fused"]
    assert (one.choice.config, one.model.config) == ({"rows": 1}, {"rows": 0}) and one.times["unfused"].ms == 1.0
    assert one.text == "1" and one.command == "redfuser tune fused" and one.versions == {"tilelang": "0.1.15", "torch": "2"}
    assert "model's choice takes 1.145 times the best measured (geomean; worst 1.250); 2 stay unfused" in adopt.summary(found)
    assert adopt.markdown(found).count("| unfused |") == 2
    assert adopt.adopted(path) == adopt.adopted(path)


def test_what_was_measured_beside_somebody_else_decides_nothing(tmp_path: Path) -> None:
    path = prepared(tmp_path, kernel("a", "0"))
    run(path, lambda *asked: Measurement({"unfused": sample(9.0, spread=0.1), "0": sample(0.1, spread=1.2)}))
    _, found, none = adopt.adopted(path)
    assert found == [] and "too noisy" in none[0]
    run(path, Fake({"unfused": 9.0, "0": 0.1}))
    assert [r.fuse for r in adopt.adopted(path)[1]] == [True], "the next run measures it again"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="RF707"):
        folder.read(tmp_path)
    path = prepared(tmp_path, replace(kernel("a", "0"), key="../a"))
    with pytest.raises(TuningError, match="RF707"):
        folder.read(path)


def test_the_process_may_die_hang_fall_silent_and_be_wrong(tmp_path: Path) -> None:
    path, told = prepared(tmp_path, kernel("a", "0", "dies", "hangs", "silent", "wrong", "5")), list[str]()
    one = InChild("cuda", "tests.autotune.standin", silence_s=3.0)
    try:
        run(path, one, told=told)
    finally:
        one.close()
    made, = adopt.adopted(path)[1]
    assert made.candidates == 2 and made.failed == 4 and made.choice.config == {"rows": 5}
    said = "\n".join(told)
    assert all(w in said for w in ("dies was lost: the process died", "hangs was lost: it did not end",
                                   "silent was lost: no answer within 3 s", "wrong is passed over: normal inputs"))


def test_a_kernel_that_faults_ends_the_process_and_no_other_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault every call on the device fails: the next candidates would be called wrong as well."""
    region, said = "def forward(x):\n    return (x,)\n", list[object]()
    request = {"region": region, "candidates": {"0": "x", "1": "y"}, "first": "0", "device": "cpu", "seconds": 0.01}
    monkeypatch.setattr(child, "load_kernel", lambda folder: (_ for _ in ()).throw(RuntimeError("illegal address")))
    assert set(child.measure(request, said.append)["wrong"]) == {"0", "1"} and said == [{"begin": "0"}, {"begin": "1"}]
    monkeypatch.setattr(torch, "ones", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("illegal address")))
    with pytest.raises(child.Ruined, match="illegal address"):
        child.measure(request, said.append)
    assert said[2:] == [{"begin": "0"}]


def test_a_process_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    one = InChild("cuda", "tests.autotune.no_such_module")
    with pytest.raises(TuningError, match=r"RF708(.|\n)*no_such_module"):
        run(prepared(tmp_path, kernel("a", "0")), one)
