"""Segment programs as text, their verifier, and the choice of strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from redfuser.acrf.expr import Ref
from redfuser.errors import InputError
from redfuser.strategies import check, realise, select, split_range
from redfuser.strategies.select import Machine
from tests import fused_examples as examples

CASES = {
    "attention": lambda: examples.attention(1, 4, 2, 16, 48, 8, "f16"),
    "softmax": lambda: examples.softmax(3, 50, "f16"),
    "layer_norm": lambda: examples.layer_norm(3, 50, "f16"),
    "router": lambda: examples.router(4, 8, 16, 2),
    "argmax": lambda: examples.argmax(3, 20),
    "logsumexp": lambda: examples.logsumexp(3, 20),
}
STRATEGIES = {"single": 1, "resident": 1, "multi": 3}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_program_text(name: str, strategy: str, golden: Callable[[str, str], None]) -> None:
    program = realise(CASES[name](), strategy, STRATEGIES[strategy])
    assert check(program) == []
    golden(f"strategies/{name}_{strategy}.txt", str(program))


def test_one_exponential_per_score() -> None:
    """exp(p - m) is evaluated once per element and exp(m@old - m) once per row, not once per e."""
    program = realise(CASES["attention"](), "single")
    text = [str(b) for b in program.kernels[0].body]
    assert sum(line.count("exp(") for line in text) == 2
    assert not any("exp(" in line for line in text if line.startswith(("reduce", "correct")))


def test_merge_is_the_states_own() -> None:
    """A combine reads its merge off rebase: changing rebase changes the combine."""
    good = realise(CASES["attention"](), "multi", 2).kernels[1]
    bad = realise(examples.planted(CASES["attention"]()), "multi", 2).kernels[1]
    assert "t_scale" in str(good) and "exp" not in str(bad)


def _edit(program, kernel: int, part: str, edit):
    k = program.kernels[kernel]
    k = replace(k, **{part: edit(getattr(k, part))})
    return replace(program, kernels=(*program.kernels[:kernel], k, *program.kernels[kernel + 1:]))


@pytest.mark.parametrize(("part", "edit", "says"), [
    ("body", lambda b: b[1:], "s is read before it is defined"),
    ("body", lambda b: tuple(x for x in b if x.role != "store"), "m@old is read before it is defined"),
    ("body", lambda b: (*b, b[-1]), "reduced twice"),
    ("body", lambda b: (*b, next(x for x in b if x.role == "correct")), "corrected after it was reduced"),
    ("tail", lambda b: (*b, b[-1]), "y is stored 2 times"),
    ("tail", lambda b: b[:-1], "y is stored 0 times"),
    ("init", lambda b: b[1:], "which init does not set"),
    ("tail", lambda b: (replace(b[0], axes=b[0].axes[:-1]), *b[1:]), "varies along e"),
    ("tail", lambda b: (replace(b[0], exprs=(Ref("nobody", "f32"),)), *b[1:]), "nobody is read before"),
    ("tail", lambda b: (replace(b[0], role="reduce"), *b[1:]), "has no place in the tail"),
])
def test_verifier_finds(part, edit, says) -> None:
    program = realise(CASES["attention"](), "single")
    found = check(_edit(program, 0, part, edit))
    assert any(says in line for line in found), found


def test_verifier_finds_late_store() -> None:
    program = realise(CASES["attention"](), "single")

    def late(blocks):
        store = next(b for b in blocks if b.role == "store")
        rest = [b for b in blocks if b is not store]
        at = next(i for i, b in enumerate(rest) if b.role == "reduce")
        return (*rest[:at + 1], store, *rest[at + 1:])

    assert any("after it changed" in line for line in check(_edit(program, 0, "body", late)))


def test_bad_requests() -> None:
    f = CASES["softmax"]()
    for arguments in (("online", 1), ("single", 2), ("multi", 0), ("single", 1, 0)):
        with pytest.raises(InputError, match="RF350"):
            realise(f, *arguments)


def test_split_ranges_cover_the_row() -> None:
    for extent in (1, 5, 64, 100):
        for splits in (1, 2, 3, 7, 130):
            for granule in (1, 4, 64):
                ranges = [split_range(extent, splits, s, granule) for s in range(splits)]
                assert [i for a, b in ranges for i in range(a, b)] == list(range(extent))
    assert split_range(5, 7, 6) == (5, 5)


def test_select() -> None:
    gpu = Machine(processors=132, rows=64, row_bytes=64 << 10)
    prefill = examples.attention(2, 12, 12, 512, 512, 64, "f16", causal=False)
    decode = examples.attention(1, 32, 8, 1, 4096, 128, "f16")
    assert select(prefill, gpu) == ("single", 1)
    assert select(decode, gpu) == ("multi", 16)
    assert select(examples.attention(32, 32, 8, 1, 4096, 128, "f16"), gpu) == ("single", 1)
    assert select(examples.layer_norm(4096, 768, "f16"), gpu) == ("resident", 1)
    assert select(examples.softmax(2, 1_000_000), gpu)[0] == "multi"
    assert select(decode, "cpu") == ("single", 1)
    few = {d: examples.attention(1, 12, 12, 512, 512, 64, d, causal=False) for d in ("f16", "f32")}
    assert {d: select(f, "sm_90a") for d, f in few.items()} == {"f16": ("single", 1), "f32": ("multi", 2)}, "128 rows in pieces"
    place = examples.argmax(9, 777)  # tiles pick the best of a row that one block holds
    assert (select(place, gpu), select(place, "cpu")) == (("resident", 1), ("single", 1))
    assert select(examples.argmax(9, 1_000_000), gpu)[0] == "multi"
    splits = {arch: select(examples.softmax(2, 1_000_000), arch)[1] for arch in ("sm_90a", "sm_80", "sm_86")}
    assert splits["sm_90a"] > splits["sm_80"] > splits["sm_86"], "as many as the named architecture has processors for"
