"""Records are files that people review: the same records give the same bytes, and what is damaged is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from redfuser import strict
from redfuser.autotune import adopt, records
from redfuser.autotune.device import part_of
from redfuser.autotune.lookup import SHIPPED
from redfuser.autotune.records import Choice
from redfuser.errors import TuningError
from redfuser.tensorize import TileConfig
from tests import fused_examples as examples
from tests.autotune.planted import record

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ONE = record(examples.softmax(64, 300), Choice("single", 1, {"rows": 4, "schedule": "auto"}), of="a")
TWO = record(examples.softmax(64, 200), Choice("multi", 3), fuse=False, of="b")


def test_the_same_records_give_the_same_bytes_a_line_each(tmp_path: Path) -> None:
    text = records.dumps([TWO, ONE])
    assert text == records.dumps([ONE, TWO]) and len(text.splitlines()) == 2 + 2
    assert records.loads(text, "x") == [ONE, TWO]
    written, = records.add(tmp_path, [TWO])
    assert written.name == "sm_90a-H200.json" and records.add(tmp_path, [ONE]) == [written]
    assert written.read_text() == text, "one after the other as both at once"
    records.add(tmp_path, [replace(ONE, date="later")])
    assert [r.date for r in records.read(written)] == ["later", TWO.date], "of a kernel on a part there is one"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "records": [{}]}', '{"format": 99, "records": []}',
                                  records.dumps([ONE])[:200], records.dumps([ONE]).replace('"H200"', "3"), "[" * 100000])
def test_what_is_no_file_of_records_is_refused(text: str) -> None:
    with pytest.raises(TuningError, match="RF701"):
        records.loads(text, "x")


def test_a_key_is_of_what_the_choice_is_about() -> None:
    softmax = examples.softmax(64, 300)
    same = records.key(replace(softmax, cascade=replace(softmax.cascade, name="other")), "sm_90a")
    assert same == records.key(softmax, "sm_90a"), "the display name is no part of it"
    others = [records.key(examples.softmax(64, 301), "sm_90a"), records.key(examples.softmax(65, 300), "sm_90a"),
              records.key(softmax, "sm_80"), records.key(examples.logsumexp(64, 300), "sm_90a")]
    assert len({same, *others}) == 5


def test_a_kernels_text_counts_without_its_name() -> None:
    text = '"""attn: generated."""\ndef make():\n    @T.prim_func\n    def attn_split(\n    x):\n    attn_split_kernel\n'
    other = text.replace("attn", "k0_x")
    assert records.text_of(text) == records.text_of(other) != records.text_of(text.replace("x)", "y)"))
    assert records.text_of("") == ""


@pytest.mark.parametrize("device, part", [("NVIDIA H200", "H200"), ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A10", "A10"),
                                          ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA A100X", "NVIDIA A100X")])
def test_a_part_is_a_word_of_its_drivers_name(device: str, part: str) -> None:
    assert part_of(device) == part


def test_shipped_records_are_what_is_written() -> None:
    """They read, are what `--adopt` makes of the measurements in docs/results, and name no path of a machine."""
    files = sorted(SHIPPED.glob("*.json"))
    assert files
    measured = [r for folder in RESULTS.glob("*-tuning") for r in adopt.adopted(folder)[1]]
    assert records.dumps(measured) == "".join(path.read_text() for path in files), "what is in docs/results, adopted"
    for path in files:
        found = records.read(path)
        assert records.dumps(found) == path.read_text()
        assert {records.file_name(r.arch, r.part) for r in found} == {path.name}
        assert all(r.versions and r.date and r.command and r.device and r.candidates for r in found)
        assert not any(word.startswith("/") for r in found for word in r.command.split())
        assert all(isinstance(strict.read(TileConfig, c.config), TileConfig) for r in found for c in (r.choice, r.model))
        assert json.loads(path.read_text())["format"] == records.FORMAT
