"""The kernels people read: golden text, and what it promises."""

from __future__ import annotations

import pytest

from redfuser.acrf import fuse, parse_cascade
from redfuser.acrf.state import Fused
from redfuser.codegen import tilelang
from redfuser.errors import LoweringError
from redfuser.strategies import realise
from redfuser.target import target
from redfuser.tensorize import TileConfig, configs, spec_skeleton, tensorize
from redfuser.tensorize.ir.nodes import TileProgram
from tests import fused_examples as cascades
from tests.tensorize import examples, test_quantisers, test_relay
from tests.tensorize.examples import Shape

H200 = target("sm_90a")
BERT = Shape(b=32, h=12, hk=12, i=512, n=512, d=64)
LONG = Shape(b=1, h=32, hk=32, i=8192, n=8192, d=128)
WINDOW = Shape(b=1, h=16, hk=2, i=2000, n=2000, d=80)


def tiles(f, strategy: str = "single", splits: int = 1, config: TileConfig | None = None) -> TileProgram:
    program = realise(f, strategy, splits)
    return tensorize(program, config or configs(program, H200)[0], H200)


GELU = """cascade gelu(x: bf16[4096, 4096], w: bf16[14336, 4096], b: bf16[14336]) over k
  o[i, d] = sum[k] f32(x[i, k]) * f32(w[d, k])
  h[i, d] = f32(bf16(o)) + f32(b[d])
  y[i, d] = bf16(h * 0.5 * (1.0 + tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))))
  return y
"""


def product() -> Fused:
    found = fuse(parse_cascade(GELU))
    assert isinstance(found, Fused)
    return found


NORM = """cascade norm(x: bf16[16384, 4096], w: bf16[4096, 4096], r: bf16[16384, 4096]) over l
  s[i, l] = sum[c] f32(x[i, c]) * f32(w[l, c])
  h[i, l] = r[i, l] + bf16(s)
  q[i] = sum[l] f32(h) * f32(h)
  v[i] = rsqrt(q / 4096.0 + 0.00001)
  return h, v
"""


def written() -> Fused:
    found = fuse(parse_cascade(NORM))
    assert isinstance(found, Fused)
    return found


KERNELS = {
    "residual_and_squares": lambda: tiles(written(), "multi", 16),
    "product_and_gelu": lambda: tiles(product()),
    "bert_attention": lambda: tiles(examples.attention(BERT, flat=True)),
    "causal_attention": lambda: tiles(examples.attention(LONG, mask=examples.masks(LONG)["causal"])),
    "window_softcap_gqa": lambda: tiles(examples.attention(WINDOW, mask=examples.masks(WINDOW)["window"], cap=50.0)),
    "masked_bias_attention": lambda: tiles(examples.attention(BERT, mask=examples.masks(BERT)["data"], bias="tile")),
    "gqa_decode_split": lambda: tiles(examples.attention(Shape(b=4, h=64, hk=8, i=1, n=4096, d=128)), "multi", 4),
    "latent_attention": lambda: test_relay.tiles(test_relay.LATENT, "relay"),
    "layer_norm": lambda: tiles(cascades.layer_norm(16384, 768, "f16"), "resident"),
    "softmax_padded": lambda: tiles(cascades.softmax(2048, 1000, "f16"), "resident"),
    "quantised_rows": lambda: test_quantisers.lowered(test_quantisers.rescale(4096, 768), test_quantisers.row(64, 768)),
    "variance_split": lambda: tiles(cascades.variance(4, 32768), "multi", 8),
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name, golden):
    program = KERNELS[name]()
    golden(f"kernels/{name}.py.txt", tilelang.print_program(program))


@pytest.mark.parametrize("name", ["bert_attention", "causal_attention", "gqa_decode_split", "latent_attention", "product_and_gelu",
                                  "residual_and_squares"])
def test_golden_tiles(name, golden):
    golden(f"kernels/{name}.tiles.txt", str(KERNELS[name]()))


def test_text_is_a_function_of_the_program():
    assert tilelang.print_program(KERNELS["bert_attention"]()) == tilelang.print_program(KERNELS["bert_attention"]())


def test_no_annotations_import():
    text = tilelang.print_program(KERNELS["bert_attention"]())
    assert "from __future__" not in text
    compile(text, "kernel", "exec")


def test_causal_walks_half_and_masks_the_diagonal():
    text = tilelang.print_program(KERNELS["causal_attention"]())
    diagonal = "T.min(T.max((i_block * 128 + 1 - 128) // 128 + 1, 1), i_block + 1)"
    assert f"T.serial(1, {diagonal})" in text and f"T.serial({diagonal}, i_block + 1)" in text
    assert "if step * 128 + 128 > i_block * 128 + 1:" in text


def test_window_skips_from_both_sides():
    made = examples.attention(WINDOW, mask=examples.masks(WINDOW)["window"], cap=50.0)
    text = tilelang.print_program(tiles(made, config=TileConfig(128, 128, 256, 2, schedule="overlap-lanes")))
    assert "T.serial(T.max(i_block - 1, 0), i_block + 1)" in text


def test_spec_lists_every_parameter():
    program = KERNELS["gqa_decode_split"]()
    args = {a.name: a for a in spec_skeleton(program)}
    used = {p.name for k in program.kernels for p in k.params}
    assert used == set(args)
    assert [a.role for a in args.values()] == ["in"] * 3 + ["out"] + ["workspace"] * 3
    assert args["out_y"].shape == (4, 1, 64, 128) and args["q"].dtype == "f16"


def test_roundings_are_listed():
    (note,) = KERNELS["bert_attention"]().roundings
    assert "rounded to f16" in note


def test_refusals():
    """No matrix unit multiplies float64, nor float32 but as TF32."""
    for dtype in ("f64", "f32"):
        with pytest.raises(LoweringError) as error:
            tiles(products(dtype), config=TileConfig(64, 64, 128, 2, warp_specialized=False))
        assert error.value.code == "RF490"


def products(dtype: str) -> Fused:
    fused = fuse(parse_cascade(f"cascade products(q: {dtype}[20, 16], k: {dtype}[50, 16]) over l\n"
                               "  s[i, l] = sum[c] q[i, c] * k[l, c]\n  m[i] = max[l] f32(s)\n"
                               "  t[i] = sum[l] exp(f32(s) - m)\n  y[i] = m + log(t)\n  return y\n"))
    assert isinstance(fused, Fused)
    return fused


def test_unknown_dialect():
    with pytest.raises(LoweringError) as error:
        tilelang.print_program(KERNELS["layer_norm"](), dialect="metal")
    assert error.value.code == "RF495"


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("d", [64, 80, 96, 128, 256])
def test_configs_fit(arch, d):
    machine = target(arch)
    program = realise(examples.attention(Shape(b=2, h=8, hk=8, i=1024, n=1024, d=d)), "single")
    for c in configs(program, machine)[:4]:
        assert c.rows // 16 >= c.threads // 32 or c.weights == "shared"
        kernel = tensorize(program, c, machine).kernels[0]
        stages = {b.name: max(1, c.stages) if b.name[0] in "kv" else 1 for b in kernel.buffers}
        held = sum(2 * stages[b.name] * b.shape[0] * b.shape[1] for b in kernel.buffers if b.scope == "shared")
        assert held <= machine.shared_bytes


def test_nothing_of_a_number_is_spelled_as_a_choice() -> None:
    """TileLang's TVM folds ``0 / t`` and ``0 * t`` to 0, which they are not where t is 0, infinite or NaN."""
    found = fuse(parse_cascade("cascade zeros(x: f32[400, 800]) over l\n  t[i] = sum[l] x[i, l]\n"
                               "  y[i] = 0.0 / t\n  z[i] = t * 0.0\n  return y, z"))
    assert isinstance(found, Fused)
    text = "".join(line for line in tilelang.print_program(tiles(found)).splitlines() if "#" not in line)
    assert "0.0 / " not in text and "* 0.0" not in text and text.count('float("nan")') == 2
