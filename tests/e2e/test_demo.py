"""The demo on a BERT of one layer: every section is there, and its exit code says that the numbers are right."""

from __future__ import annotations

import pytest

from redfuser.demo import main


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--layers", "1", "--tokens", "32"]) == 0
    out = capsys.readouterr().out
    for part in ("cascades ", "= max[l]", "finalize", "import tilelang.language as T", "T.gemm(", "output 0: ok"):
        assert part in out, f"the demo does not show {part!r}"
