"""Pictures of measurements: how many times our time each baseline takes, as bars, and where each case lies under the roof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from redfuser.bench import rows
from redfuser.bench.rows import OURS, Row

BLACK, GREY = "#000000", "#c8c8c8"
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#7f7f7f", "#bcbd22")
BAR, WIDE, MARGIN, LETTER = 18, 700, 20, 9
"""Pixels: of a bar, of the axis, around it, of a letter's width."""


class Canvas:
    """An SVG picture of ``width`` x ``height`` pixels; (0, 0) is the upper left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.drawn = [f'<rect width="{width}" height="{height}" fill="white"/>']

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.drawn.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>')

    def text(self, x: float, y: float, text: str) -> None:
        self.drawn.append(f'<text x="{x:g}" y="{y + BAR * 0.7:g}">{escape(text)}</text>')

    def svg(self) -> str:
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                          f'font-family="monospace" font-size="{LETTER / 0.6:g}">', *self.drawn, "</svg>\n"])


def write(measured: Sequence[Row], folder: Path) -> list[Path]:
    """``speedup-FAMILY.svg`` for each family, and ``roofline.svg``; the files that were written."""
    cases = rows.fold(measured)
    families = list(dict.fromkeys(case.split("/")[0] for case in cases))
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {f"speedup-{f}": speedups(f, {c: g for c, g in cases.items() if c.startswith(f"{f}/")}) for f in families}
    pictures["roofline"] = roofline(cases)
    written = []
    for name, picture in pictures.items():
        if picture is not None:
            written.append(folder / f"{name}.svg")
            written[-1].write_text(picture.svg(), encoding="utf-8")
    return written


def speedups(title: str, cases: Mapping[str, Mapping[str, Row]]) -> Canvas | None:
    """A bar for each case and baseline, on a logarithmic axis with a line at 1; None where nothing can be compared."""
    found = [(case, name, their / ours) for case, group in cases.items() if (ours := _time(group.get(OURS)))
             for name, row in group.items() if name != OURS and (their := _time(row))]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, name, _ in found))
    low = math.floor(min(0.0, *(math.log2(x) for *_, x in found)))
    high = max(low + 1, math.ceil(max(math.log2(x) for *_, x in found)))
    label = LETTER * max(map(len, (*cases, f"{title}: time over ours"))) + MARGIN
    tall = (len(found) + 5) * BAR + len(cases) * BAR // 2 + 2 * MARGIN
    picture = Canvas(label + max(WIDE, _legend_width(names)) + 4 * MARGIN, tall)
    at = lambda x: label + MARGIN + WIDE * (math.log2(x) - low) / (high - low)  # noqa: E731
    picture.text(MARGIN // 2, MARGIN, f"{title}: time over ours")
    _legend(picture, label + MARGIN, MARGIN, names)
    top = MARGIN + 2 * BAR
    for k in range(low, high + 1):
        picture.box(at(2.0 ** k), top, 2, picture.height, BLACK if k == 0 else GREY)
        picture.text(at(2.0 ** k) + 4, top, f"{2.0 ** k:g}x")
    y, last = float(top + BAR), ""
    for case, name, x in found:
        y += BAR if last == case else BAR * 1.5
        if case != last:
            picture.text(MARGIN // 2, y, case)
        last = case
        left, right = sorted((at(1.0), at(x)))
        picture.box(left, y, max(2.0, right - left), BAR - 3, COLOURS[names.index(name) % len(COLOURS)])
    return picture


def roofline(cases: Mapping[str, Mapping[str, Row]]) -> Canvas | None:
    """The share of the roof that each case of ours reaches, over its operations per byte; None where there is no roof."""
    points = [(case, r["flops"] / r["bytes"], r["floor_ms"] / t) for case, group in cases.items()
              if (r := group.get(OURS)) and (t := _time(r)) and r.get("floor_ms") and r.get("bytes")]
    if not points:
        return None
    families = list(dict.fromkeys(case.split("/")[0] for case, *_ in points))
    high = max(1, math.ceil(max(math.log2(max(x, 1.0)) for _, x, _ in points)))
    tall, left, top = 400, 80, 4 * BAR + MARGIN
    picture = Canvas(max(WIDE + left, _legend_width(families)) + 3 * MARGIN, tall + top + 4 * BAR)
    picture.text(MARGIN, MARGIN, "share of the roof over operations per byte")
    _legend(picture, MARGIN, MARGIN + BAR * 1.5, families)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + tall * (1 - share)
        picture.box(left, y, WIDE, 2, BLACK if share == 1.0 else GREY)
        picture.text(MARGIN, y - BAR / 2, f"{share:.0%}")
    for k in range(0, high + 1, max(1, high // 8)):
        picture.text(left + WIDE * k / high, top + tall + BAR // 2, f"{2 ** k}")
    for case, x, share in points:
        colour = COLOURS[families.index(case.split("/")[0]) % len(COLOURS)]
        picture.box(left + WIDE * math.log2(max(x, 1.0)) / high - 4, top + tall * (1 - share) - 4, 9, 9, colour)
    return picture


def _legend(picture: Canvas, x: float, y: float, names: Sequence[str]) -> None:
    for n, name in enumerate(names):
        picture.box(x, y, BAR - 4, BAR - 4, COLOURS[n % len(COLOURS)])
        picture.text(x + BAR, y, name)
        x += 2 * BAR + LETTER * len(name)


def _legend_width(names: Sequence[str]) -> int:
    return sum(2 * BAR + LETTER * len(name) for name in names)


def _time(row: Row | None) -> float | None:
    return rows.best_ms(row) if row is not None and row["passed"] is not False else None
