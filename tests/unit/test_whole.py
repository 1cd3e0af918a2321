"""What torch runs as one call is not taken apart, and a graph that torch cannot spell without a kernel is no reason to fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from redfuser import outer
from redfuser.acrf import parse_cascade
from redfuser.errors import UnsupportedError
from redfuser.whole import ONE_CALL, parts_of_one_call

SOFTMAX = parse_cascade("""cascade softmax(x: f32[4, 8]) over l
  m[i] = max[l] x[i, l]
  t[i] = sum[l] exp(x[i, l] - m)
  y[i, l] = exp(x[i, l] - m) / t
  return y
""")
NORM = parse_cascade("""cascade norm(x: f32[4, 8]) over l
  t[i] = sum[l] x[i, l] * x[i, l]
  y[i, l] = x[i, l] * rsqrt(t)
  return y
""")


def emitted(monkeypatch: pytest.MonkeyPatch, calls: dict[int, int | Exception]) -> None:
    """``calls``: by how many regions are kept, the library's calls in the text, or an error."""
    def emit(imported: object, regions: list[object], names: dict[str, str]) -> SimpleNamespace:
        found = calls[len(regions)]
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(source=ONE_CALL * found)

    monkeypatch.setattr(outer, "emit", emit, raising=False)


def region(name: str, cascade: object) -> SimpleNamespace:
    return SimpleNamespace(name=name, key=name, cascade=cascade, ops=(name,))


def test_a_softmax_inside_an_attention_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted(monkeypatch, {0: 1, 1: 1, 2: 0})
    left = parts_of_one_call(None, [region("softmax.0", SOFTMAX), region("norm.0", NORM)], {})
    assert set(left) == {"softmax.0"} and left["softmax.0"].code == "RF305"


def test_what_refused_the_whole_attention_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def declined(stem: str, why: str, *ops: str) -> SimpleNamespace:
        return SimpleNamespace(stem=stem, ops=ops, reason=SimpleNamespace(code="RF490", why=why, condition="", help="a larger part"))

    emitted(monkeypatch, {0: 1, 1: 1, 2: 0})
    before = [declined("norm", "a norm before it", "softmax.0"), declined("attn", "another's", "else"),
              declined("attn", "no room\nand more", "softmax.0", "matmul"), declined("attn", "a part", "softmax.0")]
    (left,) = parts_of_one_call(None, [region("softmax.0", SOFTMAX), region("norm.0", NORM)], {}, before).values()
    assert left.code == "RF305" and left.why.endswith(": RF490 no room") and left.help == "a larger part"


def test_a_softmax_beside_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted(monkeypatch, {0: 1, 1: 1})
    assert parts_of_one_call(None, [region("softmax.0", SOFTMAX)], {}) == {}


def test_what_torch_has_no_spelling_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted(monkeypatch, {0: UnsupportedError("RF120", "no spelling"), 1: 0})
    assert parts_of_one_call(None, [region("softmax.0", SOFTMAX)], {}) == {}
