"""``redfuser algebra``: what it prints, its data, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from redfuser.acrf.check.verify import check
from redfuser.acrf.serial import fused_from_json
from redfuser.cli.main import cli

CORPUS = Path(__file__).parents[2] / "corpus"
SOFTMAX, REFUSED = CORPUS / "accept" / "softmax_value.txt", CORPUS / "refuse" / "top_p.txt"


def invoke(*args: str, text: str | None = None):
    return CliRunner().invoke(cli, ["algebra", *args], input=text)


def test_a_fused_cascade_is_told_in_full(golden):
    out = invoke(str(SOFTMAX))
    assert out.exit_code == 0, out.output
    story, verdict = out.stdout.rsplit("  checked", 1)
    assert "holds" in verdict
    golden("algebra/softmax_value.txt", story)


def test_a_refused_cascade_says_why_and_exits_3(golden):
    out = invoke(str(REFUSED))
    assert out.exit_code == 3
    golden("algebra/top_p.txt", out.output.replace(str(REFUSED), REFUSED.name))


def test_data_can_be_checked_again():
    out = invoke("-", "--json", text=SOFTMAX.read_text() + REFUSED.read_text())
    fused, refused = json.loads(out.stdout)
    assert out.exit_code == 3
    assert fused["status"] == "fused" and fused["violations"] == [] and check(fused_from_json(fused)) == []
    assert refused["status"] == "refused" and refused["code"] == "RF204" and refused["source"] == "<stdin>:13"


def test_the_cast_policy_decides():
    file = str(CORPUS / "refuse" / "fp8_gemm_preserve.txt")
    assert invoke(file).exit_code == 3
    out = invoke(file, "--casts", "elide")
    assert out.exit_code == 0 and "roundings that moved" in out.output


@pytest.mark.parametrize(("text", "code"), [("", "RF184"), ("cascade a(x: f32[L]) over l\n s = sum[l] y[l]", "RF181")])
def test_bad_text_is_an_error_with_its_place(text, code):
    out = invoke("-", text=text)
    assert out.exit_code == 2 and code in out.output and "Traceback" not in out.output


def test_wrong_usage_exits_2(tmp_path):
    assert invoke(str(tmp_path / "none.txt")).exit_code == 2
    assert invoke(str(SOFTMAX), "--casts", "sometimes").exit_code == 2
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    out = invoke(str(tmp_path / "bytes.txt"))
    assert out.exit_code == 2 and "RF184" in out.output
