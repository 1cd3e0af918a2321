"""The report: what was found in a model, what was fused and what was not, and why. Pure data.

One object behind ``redfuser.explain(...)``, ``compiled.report`` and ``redfuser explain``; :meth:`Report.summary` is the
plain text people read, :meth:`Report.to_json` the same data for programs. Nothing here imports torch or TVM, so a saved
model carries its report and any machine can print it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from redfuser import strict
from redfuser.reported import CascadeReport, Note, Numerics, Opaque, Reason, Step, in_words

SCHEMA = 1
LANGUAGES = {"hip": "HIP", "source": "TileLang", "tir": "TIR"}
"""Of a kernel's text, by stage: the nearest to the machine first."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole model. ``cascades``: the attention, norms, softmaxes, routings and statistics in it, opaque ones included.
    ``maps``: groups of maps that no cascade has and a kernel runs; no cascades, and in no figure about those.
    ``built``: False when kernels were planned only, as ``explain`` does: fused then means that a kernel's text was made and
    passed the checks that need no binary. ``timings``: seconds per stage. ``versions``: what compiled it. ``steps``: the
    operations of the model. ``texts``: by kernel, its stages, where they are at hand: no part of the data."""

    model: str
    target: str
    cascades: tuple[CascadeReport, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    notes: tuple[Note, ...] = ()
    numerics: Numerics | None = None
    timings: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    built: bool = True
    maps: tuple[CascadeReport, ...] = ()
    steps: tuple[Step, ...] = ()
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)

    # -- numbers -------------------------------------------------------------------------------------------------------

    @property
    def fused(self) -> tuple[CascadeReport, ...]:
        return tuple(c for c in self.cascades if c.fused)

    @property
    def refused(self) -> tuple[CascadeReport, ...]:
        return tuple(c for c in self.cascades if not c.fused)

    @property
    def coverage(self) -> float:
        """Of the attention, norms, softmaxes, routings and statistics in the model, opaque ones included, the fraction that
        run fused, 0 to 1; 1 for a model without any (nothing was left undone). Joins that were not made are notes."""
        return len(self.fused) / len(self.cascades) if self.cascades else 1.0

    @property
    def bytes_saved(self) -> int:
        """Predicted bytes of device memory traffic that one call no longer moves."""
        return sum(c.traffic.saved for c in (*self.fused, *self.maps) if c.traffic)

    def cascade(self, name: str) -> CascadeReport:
        """The cascade, or group of maps, of that name; KeyError names the nearest."""
        for c in (*self.cascades, *self.maps):
            if c.name == name:
                return c
        raise KeyError(f"no cascade {name!r}; there are {', '.join(c.name for c in self.cascades) or 'none'}")

    def without(self, kernels: Mapping[str, str]) -> Report:
        """The same after kernels (by name, with the reason) were found wrong where they should run: not fused, RF807."""
        cascades = tuple(replace(c, fused=False, reason=Reason(
            "RF807", c.ops[0].name if c.ops else "", c.ops[0].source if c.ops else "", "its kernel is right on this device",
            kernels[c.kernel], "please report it with `redfuser doctor`")) if c.fused and c.kernel in kernels else c
            for c in self.cascades)
        maps = tuple(m for m in self.maps if m.kernel not in kernels)
        return replace(self, cascades=cascades, maps=maps) if kernels else self

    def lasting(self) -> Report:
        """What every compile of this model says alike, for a file: no timings, nor whether a verdict came from the cache; nor
        lines of its source."""
        plain = {"re-checked now": "re-checked", "re-checked, from cache": "re-checked"}
        def later(text: str) -> str:
            return next((text.replace(a, b) for a, b in plain.items() if text.endswith(a)), text)

        def plainly(found: Iterable[CascadeReport]) -> tuple[CascadeReport, ...]:
            return tuple(replace(c, certificate=later(c.certificate), checks=tuple(map(later, c.checks))) for c in found)

        return replace(self, cascades=plainly(self.cascades), maps=plainly(self.maps), timings={},
                       steps=tuple(replace(s, code="") for s in self.steps))

    # -- text ----------------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """Plain text: one head line, one line per group of like cascades, then what the user should know."""
        left = len(self.refused)
        head = f"{self.model}  {self.target}  cascades {len(self.cascades)}: fused {len(self.fused)}"
        head += f", kept unfused {left}" if left else ""
        head += f"  map kernels {len(self.maps)}" if self.maps else ""
        lines = [head + ("" if self.built else "  (planned, not built)")]
        lines += _table([_row(name, c) for found in (self.cascades, self.maps) for name, c in _groups(found)])
        if self.opaque:
            lines.append(f"opaque torch calls {sum(o.count for o in self.opaque)}:")
            lines += _table([(o.op, f"x{o.count}", o.why or "unknown to the importer", o.source) for o in self.opaque])
        if self.numerics:
            verdict = "within the rule" if self.numerics.passed else "OUTSIDE the rule"
            lines.append(f"numerics: err {self.numerics.ratio:.2g}x baseline, {verdict}")
        moved = sum(len(c.roundings) for c in self.cascades)
        tail = f"roundings moved: {moved}"
        if self.bytes_saved:
            tail += f"    traffic saved per call: {_bytes(self.bytes_saved)} (predicted)"
        lines.append(tail)
        lines += [f"{n.level}: {n.code + ' ' if n.code else ''}{n.text}" for n in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def kernel_text(self, c: CascadeReport) -> tuple[str, str]:
        """What the target gets for a cascade: the language of its kernel and the kernel; empty where there is none at hand."""
        stages = self.texts.get(c.kernel, {})
        return next(((language, stages[n]) for n, language in LANGUAGES.items() if stages.get(n)), ("", ""))

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; :meth:`from_json` reads it back to an equal report."""
        data = asdict(replace(self, texts={}))
        del data["texts"]
        data["schema"] = SCHEMA
        data["coverage"] = {"cascades": len(self.cascades), "fused": len(self.fused), "fraction": self.coverage}
        return data

    def to_html(self) -> str:
        """One page that needs nothing else: the model by module, every cascade with all that is known of it, what is left."""
        from redfuser import page

        return page.render(self.to_json(), self.texts)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """Read :meth:`to_json`'s output. Raises ValueError for another schema, and for anything that is not a report."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a report of schema {SCHEMA}, which is what this version reads")
        return strict.read(Report, data)


# -- printing ----------------------------------------------------------------------------------------------------------


def _groups(cascades: Iterable[CascadeReport]) -> Iterator[tuple[str, CascadeReport]]:
    """Cascades that differ only in a trailing number share a row, ``attn.0-11``, which shows the worst error of them.
    Fused ones come first, otherwise in program order."""
    groups: dict[Any, list[tuple[int, CascadeReport]]] = {}
    for c in sorted(cascades, key=lambda c: not c.fused):
        found = re.fullmatch(r"(.*?)(\d+)", c.name)
        stem, number = (found[1], int(found[2])) if found else (c.name, 0)
        reason = c.reason and (c.reason.code, c.reason.condition, c.reason.why)
        alike = (stem, bool(found), c.fused, c.strategy, c.splits, c.config, c.traffic, c.certificate, reason)
        groups.setdefault(alike, []).append((number, c))
    for (stem, *_), members in groups.items():
        first = members[0][1]
        if len(members) == 1:
            yield first.name, first
            continue
        checked = [c.numerics for _, c in members if c.numerics]
        worst = max(checked, key=lambda n: n.ratio) if checked else None
        yield f"{stem}{_ranges([n for n, _ in members])}", replace(first, numerics=worst)


def _ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` --> ``0-2,5``."""
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in out)


def _row(name: str, c: CascadeReport) -> tuple[str, ...]:
    if not c.fused:
        assert c.reason is not None
        return (name, "kept", c.reason.code, c.reason.why or c.reason.condition, c.reason.source)
    strategy = {"single": "single-segment", "resident": "resident row", "multi": f"multi-segment x{c.splits}",
                "map": "map"}
    saved = f"{c.traffic.ratio:.1f}x less traffic" if c.traffic else ""
    time = f"{in_words(c.seconds)} modelled" if c.seconds is not None else ""
    time = f"{in_words(c.measured.fused)} measured, {in_words(c.measured.unfused)} unfused" if c.measured else time
    error = f"err {c.numerics.ratio:.1g}x baseline" if c.numerics else ""
    source = next((o.source for o in c.ops if o.source), "")
    return (name, strategy.get(c.strategy, c.strategy), c.config, c.certificate, saved, time, error, source)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Aligned columns; each kind of row (by its length) is aligned by itself, and empty columns take no room."""
    lines: list[str] = []
    for row in rows:
        peers = [r for r in rows if len(r) == len(row)]
        widths = [max(len(r[i]) for r in peers) for i in range(len(row))]
        first = max(len(r[0]) for r in rows)
        cells = [f"{row[0]:<{first}}"] + [f"{cell:<{w}}" for cell, w in zip(row[1:], widths[1:], strict=True) if w]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _bytes(n: int) -> str:
    size = float(n)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1000 or unit == "GB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
