"""The types of elements, as one table: what everything else knows of a dtype is read off it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """long: its name in torch, NumPy and TVM. Of a float, significand: bits, the leading one included; exponent: of the least
    normal number. least, largest: finite values."""

    long: str
    bytes: int
    least: float | int
    largest: float | int
    significand: int = 0
    exponent: int = 0


def _float(long: str, bytes: int, significand: int, exponent: int, largest: float) -> DType:
    return DType(long, bytes, -largest, largest, significand, exponent)


TABLE = {
    "f64": _float("float64", 8, 53, -1022, float.fromhex("0x1.fffffffffffffp+1023")),
    "f32": _float("float32", 4, 24, -126, float.fromhex("0x1.fffffep+127")),
    "f16": _float("float16", 2, 11, -14, 65504.0),
    "bf16": _float("bfloat16", 2, 8, -126, float.fromhex("0x1.fep+127")),
    "e4m3": _float("float8_e4m3fn", 1, 4, -6, 448.0),
    "e5m2": _float("float8_e5m2", 1, 3, -14, 57344.0),
    "i64": DType("int64", 8, -(2**63), 2**63 - 1),
    "i32": DType("int32", 4, -(2**31), 2**31 - 1),
    "i8": DType("int8", 1, -128, 127),
    "u8": DType("uint8", 1, 0, 255),
    "bool": DType("bool", 1, 0, 1),
}
"""The dtypes of the expression IR by their short names."""

LONG = {name: d.long for name, d in TABLE.items()}
SHORT = {d.long: name for name, d in TABLE.items()}
BYTES = {name: d.bytes for name, d in TABLE.items()}
"""Of an element."""
FLOATS = frozenset(name for name, d in TABLE.items() if d.significand)
NARROW = ("f16", "bf16", "e4m3", "e5m2")
"""Floats whose products are exact in single precision: what the matrix units multiply."""
INTS = frozenset(("i64", "i32", "i8", "u8"))
UNIT = {name: 2.0**-d.significand for name, d in TABLE.items() if d.significand}
"""Unit roundoff: half the distance from 1 to the next value."""
LARGEST = {name: float(d.largest) for name, d in TABLE.items() if d.significand}
SMALLEST_NORMAL = {name: 2.0**d.exponent for name, d in TABLE.items() if d.significand}


def widens(source: str, target: str) -> bool:
    """Every value of ``source`` is one of ``target``: such a cast rounds nothing."""
    if source == target or source == "bool":
        return True
    if source in FLOATS and target in FLOATS:
        a, b = TABLE[source], TABLE[target]
        return a.significand <= b.significand and a.exponent >= b.exponent and a.largest <= b.largest
    return source in ("i8", "u8") and target in FLOATS and target not in ("e4m3", "e5m2")
