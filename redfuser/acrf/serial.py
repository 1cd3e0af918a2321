"""Fusions, certificates and refusals as JSON data, and back.

    text = json.dumps(fused_to_json(fused))
    assert fused_from_json(json.loads(text)) == fused      # and can be re-checked by redfuser.acrf.check.verify

Expressions travel in the text form, so a person can read the file and a diff shows what changed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from redfuser.acrf.cascade import Let, Reduce, Reducer, Stmt, stmt_dtype
from redfuser.acrf.expr import Const, Expr
from redfuser.acrf.state import Accumulator, Certificate, Condition, Fused, NotFusable, State
from redfuser.acrf.text import parse_cascade, parse_expr
from redfuser.errors import ArtifactError, InputError

FORMAT = 1

Json = dict[str, Any]


def certificate_to_json(c: Certificate) -> Json:
    """Plain data: strings and lists."""
    out = asdict(c)
    out["extra"] = [[k, v] for k, v in c.extra]
    return out


def certificate_from_json(data: Json) -> Certificate:
    """Inverse of :func:`certificate_to_json`. Raises ArtifactError RF185 when fields are missing or unknown."""
    try:
        plain = {k: tuple(data[k]) for k in ("decomposition", "choices", "identities", "roundings")}
        return Certificate(key=data["key"], conditions=tuple(Condition(**c) for c in data["conditions"]),
                           casts=data["casts"], extra=tuple((k, v) for k, v in data["extra"]), **plain)
    except (KeyError, TypeError, ValueError) as e:
        raise ArtifactError("RF185", "this is no certificate", why=f"{type(e).__name__}: {e}") from None


def refusal_to_json(r: NotFusable) -> Json:
    return {"code": r.code, "statement": r.statement, "condition": r.condition, "why": r.why, "help": r.help,
            "source": r.provenance.source, "prefix": list(r.prefix)}


def fused_to_json(f: Fused) -> Json:
    """A fusion with everything its re-check needs."""
    return {"format": FORMAT, "cascade": str(f.cascade), "producers": [_stmt(s) for s in f.producers],
            "accumulators": [_accumulator(a) for a in f.state.accumulators],
            "finalize": [_stmt(s) for s in f.state.finalize], "post": [_stmt(s) for s in f.post],
            "certificate": certificate_to_json(f.certificate)}


def fused_from_json(data: Json) -> Fused:
    """Inverse of :func:`fused_to_json`. Raises ArtifactError RF185 for data of another format or shape."""
    try:
        if data["format"] != FORMAT:
            raise ArtifactError("RF185", f"a fusion in format {data['format']}, this version reads {FORMAT}")
        cascade = parse_cascade(data["cascade"])
        reader = _Reader({t.name: t.dtype for t in cascade.inputs})
        producers = tuple(reader.stmt(s) for s in data["producers"])
        accumulators = tuple(reader.accumulator(a) for a in reader.declared(data["accumulators"]))
        finalize = tuple(reader.let(s) for s in data["finalize"])
        post = tuple(reader.stmt(s) for s in data["post"])
        return Fused(cascade, producers, State(accumulators, finalize), post, certificate_from_json(data["certificate"]))
    except (KeyError, TypeError, ValueError, InputError) as e:
        raise ArtifactError("RF185", "this is no fusion", why=f"{type(e).__name__}: {e}") from None


def _stmt(s: Stmt) -> Json:
    out: Json = {"names": list(s.names), "axes": list(s.axes), "expr": str(s.expr)}
    if isinstance(s, Reduce):
        out |= {"reducer": s.reducer.kind, "k": s.reducer.k, "over": s.over, "dtype": s.dtype}
    return out


def _accumulator(a: Accumulator) -> Json:
    return {"names": list(a.names), "axes": list(a.axes), "reducer": a.reducer.kind, "k": a.reducer.k, "dtype": a.dtype,
            "neutral": [str(c) for c in a.neutral], "contribution": str(a.contribution),
            "rebase": [str(r) for r in a.rebase]}


class _Reader:
    """Parses expressions with the dtypes of all names known so far."""

    def __init__(self, tensors: dict[str, str]) -> None:
        self.tensors = tensors
        self.refs: dict[str, str] = {}

    def expr(self, text: str) -> Expr:
        return parse_expr(text, self.refs, self.tensors)

    def let(self, data: Json) -> Let:
        out = Let(data["names"][0], tuple(data["axes"]), self.expr(data["expr"]))
        self.refs[out.name] = out.expr.dtype
        return out

    def stmt(self, data: Json) -> Any:
        if "reducer" not in data:
            return self.let(data)
        out = Reduce(tuple(data["names"]), tuple(data["axes"]), Reducer(data["reducer"], data["k"]), data["over"],
                     self.expr(data["expr"]), data["dtype"])
        self.refs |= {n: stmt_dtype(out, n) for n in out.names}
        return out

    def declared(self, rows: list[Json]) -> list[Json]:
        """Accumulators may read each other's old values: all names first."""
        for a in rows:
            for i, n in enumerate(a["names"]):
                dtype = "i64" if i else a["dtype"]
                self.refs |= {n: dtype, f"{n}@old": dtype}
        return rows

    def accumulator(self, a: Json) -> Accumulator:
        neutral = tuple(self.expr(c) for c in a["neutral"])
        if not all(isinstance(c, Const) for c in neutral):
            raise ValueError("a neutral element must be a constant")
        return Accumulator(tuple(a["names"]), tuple(a["axes"]), Reducer(a["reducer"], a["k"]), a["dtype"],
                           tuple(c for c in neutral if isinstance(c, Const)), self.expr(a["contribution"]),
                           tuple(self.expr(r) for r in a["rebase"]))
