"""The floor under a time: bytes over bandwidth or operations over rate, whichever is longer. A time below it is an error of
measurement, not a win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from redfuser import timing
from redfuser.target import PARTS


@dataclass(frozen=True, slots=True)
class Roof:
    """Bytes per second of device memory, operations per second by dtype, and where the figures come from."""

    bandwidth: float
    rates: Mapping[str, float]
    source: str

    def floor_ms(self, flops: int, moved: int, dtype: str) -> float:
        rate = self.rates.get(dtype, 0.0)
        return 1e3 * max(moved / self.bandwidth, flops / rate if rate else 0.0)


KNOWN = {
    # read bandwidth and dense matrix rate measured on the card, not the data sheet's 4.8 TB/s and 990 TFLOP/s
    "NVIDIA H200": Roof(PARTS["H200"].bandwidth, {t: PARTS["H200"].rates[t] for t in ("f16", "bf16", "e4m3")},
                        "measured on an H200, 2026"),
}


@cache
def roof(device: str) -> Roof | None:
    """The roof of the device in use: known, else measured in two seconds, once (nothing else may be at work there then); None
    for a CPU."""
    if not device.startswith("cuda"):
        return None
    name = torch.cuda.get_device_name()
    return KNOWN.get(name) or measure()


def measure() -> Roof:
    """Copy bandwidth (bytes read plus written) and the fp16 matrix rate through torch."""
    a = torch.randn(1 << 29, device="cuda")
    copy = timing.cold({"copy": torch.Tensor.copy_}, [(torch.empty_like(a), a)], "cuda")["copy"].p20
    m = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    product = timing.cold({"product": torch.matmul}, [(m, m.clone())], "cuda")["product"].p20
    rate = 2 * 8192 ** 3 / (product / 1e3)
    return Roof(2 * 4 * (1 << 29) / (copy / 1e3), {"f16": rate, "bf16": rate}, "measured in this run")
