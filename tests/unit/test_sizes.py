"""Sizes: what is found from numbers at some samples is the size at every number."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from redfuser import strict
from redfuser.acrf.expr import Load
from redfuser.acrf.index import value
from redfuser.acrf.text import parse_expr
from redfuser.fitted import Apart, merged, samples
from redfuser.sizes import LIMIT, Quotient, Size, Symbol, Term, Unfit, solved
from redfuser.tensorize.ir.symbols import expr_of, size_of

N, M = Symbol("n", 1, 4096), Symbol("m", 2, 8)


def tiles(n: int, tile: int) -> int:
    return -(-n // tile)


FORMS = {
    "n": lambda n, m: n,
    "8 * n - 3": lambda n, m: 8 * n - 3,
    "-n + 5000": lambda n, m: 5000 - n,
    "(n + 127) // 128": lambda n, m: tiles(n, 128),
    "2 * ((n + 191) // 192) - 1": lambda n, m: 2 * tiles(n, 192) - 1,
    "n - 64 * ((n + 63) // 64) + 64": lambda n, m: n - 64 * (tiles(n, 64) - 1),
    "8 * n * m": lambda n, m: 8 * m * n,
    "8 * ((n + 127) // 128) * m - 1": lambda n, m: 8 * m * tiles(n, 128) - 1,
    "n - m": lambda n, m: n - m,
}


@pytest.mark.parametrize("text", FORMS)
def test_a_size_is_found_and_holds_at_multiples_of_its_tile_too(text: str) -> None:
    found = samples((N, M))
    size = merged([FORMS[text](b["n"], b["m"]) for b in found], found)
    assert str(size) == text
    for n in (1, 2, 63, 64, 65, 128, 129, 192, 1000, 4096):
        assert size.at({"n": n, "m": 3}) == FORMS[text](n, 3)
    read = parse_expr(f"_[{text}]", tensors={"_": "f32"})
    assert isinstance(read, Load) and size_of(read.indices[0]) == size == size_of(expr_of(size))
    assert value(expr_of(size), {"n": 77, "m": 5}) == size.at({"n": 77, "m": 5})
    assert strict.read(Size, asdict(size)) == size


@pytest.mark.parametrize("high", [4, 512, 4096, 65536])
def test_every_tile_is_told_from_every_other(high: int) -> None:
    found = samples((Symbol("n", 1, high),))
    for tile in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512):
        for form in (lambda n, t=tile: tiles(n, t), lambda n, t=tile: n - t * tiles(n, t)):
            size = merged([form(b["n"]) for b in found], found)
            assert {f.over for t in size.terms for f in t.factors} - {1} == {tile}


def test_no_sample_is_a_multiple_of_a_tile() -> None:
    for b in samples((N, M)):
        assert all(n % 2 and n % 64 > 16 for n in b.values())


def test_texts_records_and_what_has_no_common_form() -> None:
    found = samples((N,))
    assert merged([f"for i in range({tiles(b['n'], 64)}): x[{b['n']}, 1.5, v7]" for b in found], found) == \
        "for i in range(((n + 63) // 64)): x[n, 1.5, v7]"
    assert merged([{"grid": [tiles(b["n"], 64), 1]} for b in found], found)["grid"][1] == 1
    for made in (lambda n: (1,) * (n % 2 + n % 3), lambda n: n * n, lambda n: "a" if n % 3 == 1 else "b", lambda n: n / 2):
        with pytest.raises(Apart):
            merged([made(b["n"]) for b in found], found)


def test_shapes_say_what_symbols_are() -> None:
    n, m = (Size((Term(k, (Quotient(s),)),)) for s, k in (("n", 4), ("m", 1)))
    assert solved([("x", (n, 7), (12, 7)), ("y", (m, n), (5, 12))], (N, M)) == {"n": 3, "m": 5}
    for shapes in ([("x", (n, 7), (13, 7))], [("x", (n, 7), (12, 8))], [("x", (n, 7), (12,))],
                   [("x", (n, n), (12, 16))], [("x", (n, 7), (12, 7)), ("y", (3,), (3,))]):
        with pytest.raises(Unfit):
            solved(shapes, (N, M) if len(shapes) > 1 else (N,))


def test_a_range_begins_at_one() -> None:
    for name, low, high in (("n", 0, 4), ("n", 5, 4), ("a b", 1, 4), ("n", 1, LIMIT), ("n", 1, 2**63 - 1)):
        with pytest.raises(ValueError, match="range"):
            Symbol(name, low, high)
