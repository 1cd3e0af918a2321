"""Index expressions with shifts, remainders and quotients, drawn at random: the scalar program against the cascade.

TVM's simplifier drops a shift of one of two shifted remainders of one axis (shifted windows), unless it is kept from such
indices (:func:`redfuser.acrf.expr.entangled`). Every table's element is
its own place and scaled so that the sum over tables tells each of them apart: one wrong place is a wrong result."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from redfuser.acrf.derive.fuse import fuse
from redfuser.acrf.expr import Const, Expr, Index, Op
from redfuser.acrf.state import Fused
from redfuser.acrf.text import parse_cascade
from redfuser.chain.scalar import compiled
from redfuser.chain.tiles import arguments
from redfuser.strategies import cpu, realise
from redfuser.target import target
from redfuser.tensorize import configs, tensorize
from tests.acrf.test_affine import value
from tests.evaluated import run
from tests.tensorize.test_c_target import run as through_c

ROWS, ROW = 14 * 14, 21
TABLES = 5


def integer(v: int) -> Const:
    return Const(v, "i64")


def drawn(r: random.Random, depth: int) -> Expr:
    """Windows of 7 and their neighbours, shifted; now and then anything."""
    if depth == 0:
        return Index(r.choice("iiil"))
    inner = drawn(r, depth - 1)
    shifted = Op("add", (inner, integer(r.randrange(-9, 20))), "i64")
    match r.randrange(6):
        case 0:
            return Op("mod", (shifted, integer(r.choice((2, 3, 4, 7, 14, 21)))), "i64")
        case 1:
            return Op("floordiv", (shifted, integer(r.choice((2, 3, 4, 7, 14, 21)))), "i64")
        case 2:
            return Op("add", (Op("mul", (inner, integer(r.choice((2, 3, 7)))), "i64"), drawn(r, depth - 1)), "i64")
        case 3:
            return Op("mod", (Op("floordiv", (shifted, integer(r.choice((7, 14)))), "i64"), integer(r.choice((3, 7)))), "i64")
        case 4:
            both = [Op("mod", (Op("add", (x, integer(r.randrange(1, 7))), "i64"), integer(7)), "i64")
                    for x in (Op("floordiv", (inner, integer(r.choice((7, 14)))), "i64"), inner)]
            return Op("add", (Op("mul", (both[0], integer(7)), "i64"), both[1]), "i64")
    return Op("sub", (shifted, Op("mod", (inner, integer(r.choice((3, 7)))), "i64")), "i64")


def program(seed: int) -> Fused:
    """softmax over sums of tables, each read at an expression of its own, moved to begin at 0."""
    r = random.Random(seed)
    loads, tables = [], []
    while len(loads) < TABLES:
        e = drawn(r, r.randrange(1, 4))
        values = [value(e, {"i": i, "l": l}) for i in range(ROWS) for l in range(ROW)]
        if max(values) > min(values):
            n = len(loads)
            loads.append(f"b{n}[{e} + {-min(values)}]")
            tables.append(f"b{n}: f32[{max(values) - min(values) + 1}]")
    text = f"""cascade drawn(x: f32[{ROWS}, {ROW}], {", ".join(tables)}) over l
  s[i, l] = x[i, l] + {" + ".join(loads)}
  m[i] = max[l] s[i, l]
  t[i] = sum[l] exp(s[i, l] - m[i])
  d[i] = m[i] + log(t[i])
  return d
"""
    found = fuse(parse_cascade(text))
    assert isinstance(found, Fused), (text, found)
    return found


def inputs_of(fused: Fused, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.permutation(np.arange(int(np.prod(t.shape)))).reshape(t.shape).astype(np.float32) * 7.0**-n
            for n, t in enumerate(fused.cascade.inputs)}


@pytest.mark.parametrize(("seed", "strategy", "lanes"), [
    (0, "single", 1), (1, "resident", 1), (2, "single", cpu.LANES), (3, "single", cpu.LANES), (4, "resident", 1)])
def test_what_is_read_is_what_the_cascade_reads(seed: int, strategy: str, lanes: int) -> None:
    fused = program(seed)
    inputs = inputs_of(fused, seed)
    got = compiled(realise(fused, strategy), lanes)(inputs)["d"]
    np.testing.assert_allclose(got, run(fused.cascade, inputs)["d"], rtol=2e-5, err_msg=str(fused.cascade))


def test_and_what_the_printed_tiles_read(tmp_path: Path) -> None:
    """TileLang's own TVM has the same simplifier; the interpreter of tiles is above it."""
    fused = program(3)
    realised, machine = realise(fused, "single"), target("sm_90a")
    tiles = tensorize(realised, configs(realised, machine)[0], machine)
    inputs = inputs_of(fused, 3)
    (got,) = through_c({tmp_path: (tiles, arguments(realised, tiles, inputs))})
    np.testing.assert_allclose(got["d"], run(fused.cascade, inputs)["d"], rtol=2e-5)
