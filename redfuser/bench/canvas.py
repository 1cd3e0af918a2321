"""A picture of rectangles and text, written as PNG with nothing but zlib: the measuring machine has no plotting library."""

from __future__ import annotations

import struct
import zlib

Colour = tuple[int, int, int]
WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (200, 200, 200)
WIDTH, HEIGHT = 6, 9
"""Pixels of a character and the gap behind it, at size 1."""

_DRAWN = " %()*+,-./0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_CODES = """
0000000000 2313086462 001c224100 0041221c00 2a1c7f1c2a 08083e0808 0080703000 0808080808 0000606000 2010080402
3e5149453e 00427f4000 7249494946 2141494d33 1814127f10 2745454539 3c4a494931 4121110907 3649494936 464949291e
0000140000 1414141414 7c1211127c 7f49494936 3e41414122 7f4141413e 7f49494941 7f09090901 3e41415173 7f0808087f
00417f4100 2040413f01 7f08142241 7f40404040 7f021c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e 7f09192946
2649494932 03017f0103 3f4040403f 1f2040201f 3f4038403f 6314081463 0304780403 6159494d43 4040404040
2054547840 7f28444438 3844444428 384444287f 3854545418 00087e0902 18a4a49c78 7f08040478 00447d4000 2040403d00
7f10284400 00417f4000 7c04780478 7c08040478 3844444438 fc18242418 18242418fc 7c08040408 4854545424 04043f4424
3c4040207c 1c2040201c 3c4030403c 4428102844 4c9090907c 4464544c44"""
_FONT = {c: bytes.fromhex(code) for c, code in zip(_DRAWN, _CODES.split(), strict=True)}
"""Five columns of a character, its topmost row the lowest bit."""


class Canvas:
    """``width`` x ``height`` pixels, white; (0, 0) is the upper left. What lies outside is cut off."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        left, right = (max(0, min(self.width, round(v))) for v in (x, x + width))
        for row in self._rows[max(0, round(y)):max(0, round(y + height))]:
            row[3 * left:3 * right] = bytes(colour) * max(0, right - left)

    def text(self, x: float, y: float, text: str, colour: Colour = BLACK, size: int = 2) -> None:
        """Characters that the font lacks are blanks."""
        for n, char in enumerate(text):
            for column, bits in enumerate(_FONT.get(char, b"")):
                for row in range(8):
                    if bits >> row & 1:
                        self.box(x + size * (n * WIDTH + column), y + size * row, size, size, colour)

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: Colour) -> None:
        (a, b), (c, d) = start, end
        steps = max(1, round(max(abs(c - a), abs(d - b))))
        for k in range(steps + 1):
            self.box(a + (c - a) * k / steps, b + (d - b) * k / steps, 2, 2, colour)

    def pixel(self, x: int, y: int) -> Colour:
        r, g, b = self._rows[y][3 * x:3 * x + 3]
        return r, g, b

    def png(self) -> bytes:
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        body = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def width_of(text: str, size: int = 2) -> int:
    return size * WIDTH * len(text)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
