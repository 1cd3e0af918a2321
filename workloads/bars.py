"""How fast each workload is to be: the least factor by which ours beats something, on a case and as a geometric mean over all
cases of a bar. ``bench report --markdown`` says beside each figure whether its bar is held."""

from __future__ import annotations

from dataclasses import dataclass

ROOF, PEAK, RATE, BEST = "roof", "peak memory", "TFLOP/s", "best"


@dataclass(frozen=True)
class Bar:
    """``cases``: patterns of names. ``against``: a baseline's name: its time over ours; ``roof``: the floor over our time;
    ``best``: the fastest baseline's time over ours; ``peak memory`` of torch.compile over ours; ``TFLOP/s``: our rate.
    ``or_best``: a case that is below ``each`` of the roof holds its bar where it is as fast as every baseline."""

    cases: tuple[str, ...]
    against: str
    each: float | None = None
    mean: float | None = None
    or_best: bool = False


def _of(family: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{family}/{n}" for n in names)


_DECODE = (*_of("mha", "H[789]", "gqa-decode-32768", "gqa-decode-64x4096"),
           *_of("attention", "gqa-decode-32768", "alibi-decode-32768", "softcap-decode-32768"))
_ROWS = ("norms/*",)

BARS = (
    Bar(_of("mha", "H[1-6]"), "cudnn", 1.05, 1.10),
    Bar(_of("attention", "causal-prefill-2048"), "cudnn", 1.10),
    Bar((*_of("attention", "causal-prefill-8192", "causal-prefill-32768"), "mha/causal-8192"), "cudnn", 0.98),
    Bar(_of("attention", "global-prefill-2048", "global-prefill-8192", "global-prefill-32768"), "cudnn", 0.95),
    Bar(_of("mha", "d64-4096", "causal-d64-4096"), "cudnn", 1.05),
    Bar(_DECODE, ROOF, 0.95, or_best=True),
    Bar(_of("mla", "L?"), BEST, 1.0, 1.15),
    Bar(_of("mla", "128x4096"), RATE, 450),
    Bar(_of("moe", "R*"), "inductor", 1.5, 2.5),
    Bar(_of("quant", "Q[3-6]"), "inductor", 1.0),
    Bar(_of("quant", "Q[12789]", "Q10"), "inductor", 1.3),
    Bar(_of("quant", "Q*-plain"), "inductor", 10),
    Bar(_of("variance", "V[123]"), "inductor", 1.0),
    Bar(_of("variance", "V[4-8]"), "inductor", 1.15),
    Bar(_of("inertia", "I[12]"), "inductor", 1.0),
    Bar(_of("inertia", "I[3-8]"), "inductor", 5),
    Bar(_ROWS, ROOF, 0.8),
    Bar(_ROWS, "inductor", 1.0),
    Bar(_of("rowsets", "*"), "inductor", 1.0),
    Bar(_of("small", "*"), "inductor", 1.0),
    Bar(_of("attention", *(f"{kind}-prefill-{n}" for kind in ("alibi", "softcap", "window") for n in (8192, 16384)),
            *(f"{kind}-d64-16384*" for kind in ("alibi", "softcap", "window", "prefix", "document"))), "flex+mask", 1.5),
    Bar(_of("scored", "differential-*"), "inductor", 2),
    Bar(_of("scored", "evoformer-*"), "inductor", 2.5),
    Bar(_of("scored", "ipa-*"), "inductor", 1.3),
    Bar(_of("scored", "performer-*", "eight-bits-*"), "inductor", 2),
    Bar(_of("products", "*"), "inductor", 1.0),
    Bar(_of("products", "linear-loss-*"), PEAK, 5),
    Bar(_of("cpu", *(f"{kind}-*" for kind in ("softmax", "log-softmax", "layernorm", "rmsnorm", "attention"))), "eager", 0.5),
    Bar(_of("cpu", "bert-base-*"), "eager", 0.91),
)
