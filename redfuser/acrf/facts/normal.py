"""Normal form of scalar expressions: sums of products of atoms with rational powers.

Two spellings of one value (``exp(x)*exp(-m)`` and ``exp(x-m)``, ``(x+m)-m`` and ``x``) have one normal form, so equality
of normal forms is a *sufficient* test of equality wherever both sides are defined. It is a calculator for the
deriver: what it says is never taken as a proof (the certificate is re-checked elsewhere), and it never folds an
infinity, a NaN or a rounding away: such sub-expressions stay opaque atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from redfuser.acrf.expr import FLOATS, Cast, Const, Expr, Op, Ref, map_children, op, print_expr
from redfuser.dtypes import widens

Mono = tuple[tuple[Expr, Fraction], ...]
"""A product of atoms with their powers, in canonical order; at most one ``exp`` and one ``exp2`` atom."""
Poly = dict[Mono, Fraction]
"""A sum of monomials with rational coefficients; no zero coefficient is kept."""

_MAX_TERMS = 64
_BITS = 2**24
ONE: Mono = ()


def key(e: Expr) -> str:
    """A text that two expressions share exactly when they are equal (dtypes of leaves included)."""
    match e:
        case Const():
            return f"{e.dtype}:{e.value!r}"
        case Ref() if not e.indices:
            return f"{e.name}:{e.dtype}"
    return f"{print_expr(e)}:{e.dtype}"


def _mono(factors: Iterable[tuple[Expr, Fraction]]) -> tuple[Mono, Poly | None]:
    """Combine powers; exponentials merge by adding their arguments. The second part is a coefficient (unused)."""
    powers: dict[Expr, Fraction] = {}
    exps: dict[str, tuple[Poly, str]] = {}
    for base, power in factors:
        if isinstance(base, Op) and base.name in ("exp", "exp2"):
            arg, dtype = exps.get(base.name, ({}, base.dtype))
            exps[base.name] = (add(arg, scale(to_poly(base.args[0]), power)), dtype)
        else:
            powers[base] = powers.get(base, Fraction(0)) + power
    items = [(b, p) for b, p in powers.items() if p]
    for name, (arg, dtype) in exps.items():
        if arg:
            items.append((Op(name, (from_poly(arg, dtype),), dtype), Fraction(1)))
    return tuple(sorted(items, key=lambda f: (key(f[0]), f[1]))), None


def times(a: Mono, b: Mono) -> Mono:
    return _mono((*a, *b))[0]


def add(a: Poly, b: Poly, sign: int = 1) -> Poly:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, Fraction(0)) + sign * c
        if not out[m]:
            del out[m]
    return out


def scale(a: Poly, c: Fraction) -> Poly:
    return {m: v * c for m, v in a.items()} if c else {}


def multiply(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            mn = times(m, n)
            out[mn] = out.get(mn, Fraction(0)) + c * d
            if not out[mn]:
                del out[mn]
    return out


def power_of(a: Poly, p: Fraction, atom: Callable[[], Expr]) -> Poly:
    """``a ** p``; a sum with a power that does not expand becomes one atom."""
    if p.denominator == 1 and 0 <= p <= 6 and len(a) ** int(p) <= _MAX_TERMS:
        out: Poly = {ONE: Fraction(1)}
        for _ in range(int(p)):
            out = multiply(out, a)
        return out
    if len(a) == 1:
        (m, c), = a.items()
        whole = p.denominator == 1
        # (x*y)**p splits for whole p; for fractional p only where every factor is one atom to the first power alone
        if (whole or (len(m) == 1 and m[0][1] == 1 and c == 1)) and (whole or c == 1):
            return {_mono((b, q * p) for b, q in m)[0]: c ** int(p) if whole else Fraction(1)}
    return {((atom(), p),): Fraction(1)}


def to_poly(e: Expr) -> Poly:
    """The normal form of a numeric expression."""
    match e:
        case Const(value=v, dtype=d) if _exact(v, d):
            return {ONE: Fraction(v)} if v else {}
        case Op(name="add", args=(x, y)):
            return add(to_poly(x), to_poly(y))
        case Op(name="sub", args=(x, y)):
            return add(to_poly(x), to_poly(y), -1)
        case Op(name="neg", args=(x,)):
            return scale(to_poly(x), Fraction(-1))
        case Op(name="mul", args=(x, y)):
            a, b = to_poly(x), to_poly(y)
            if len(a) * len(b) <= _MAX_TERMS:
                return multiply(a, b)
        case Op(name="div", args=(x, y), dtype=d) if d in FLOATS:
            b = to_poly(y)
            if b:
                inverse = power_of(b, Fraction(-1), lambda: from_poly(b, d))
                a = to_poly(x)
                if len(a) * len(inverse) <= _MAX_TERMS:
                    return multiply(a, inverse)
        case Op(name="pow", args=(x, Const(value=v, dtype=d))) if _exact(v, d):
            a = to_poly(x)
            if a:
                return power_of(a, Fraction(v), lambda: from_poly(a, e.dtype))
        case Op(name="sqrt" | "rsqrt", args=(x,)):
            a = to_poly(x)
            if a:
                half = Fraction(1 if e.name == "sqrt" else -1, 2)
                return power_of(a, half, lambda: from_poly(a, e.dtype))
        case Op(name="exp" | "exp2", args=(x,)):
            arg = to_poly(x)
            if not arg:
                return {ONE: Fraction(1)}
            return {((Op(e.name, (from_poly(arg, e.dtype),), e.dtype), Fraction(1)),): Fraction(1)}
    return {((canonical_children(e), Fraction(1)),): Fraction(1)}


def spread(e: Expr) -> Expr:
    """The widening of a sum, also of a constant times one, as the sum of what is widened: so data and results in it are told
    apart. Roundings on the way keep the order of elements."""
    if isinstance(e, Cast) and isinstance(e.arg, Op) and _linear(e.arg) and widens(e.arg.dtype, e.dtype):
        return Op(e.arg.name, tuple(Const(x.value, e.dtype) if isinstance(x, Const) else spread(Cast(x, e.dtype))
                                    for x in e.arg.args), e.dtype)
    return map_children(e, spread) if isinstance(e, Op) and _linear(e) else e


def _linear(e: Op) -> bool:
    return e.name in ("add", "sub", "neg") or (e.name == "mul" and any(isinstance(x, Const) for x in e.args))


def canonical_children(e: Expr) -> Expr:
    return map_children(e, lambda k: canonical(k)) if isinstance(e, (Op, Cast)) else e


def canonical(e: Expr) -> Expr:
    """One spelling per normal form (float expressions; anything else only through its children)."""
    return canonical_children(e) if e.dtype not in FLOATS else from_poly(to_poly(e), e.dtype)


def equal(a: Expr, b: Expr) -> bool:
    """A sufficient test: both have the same normal form."""
    return a == b or not add(to_poly(a), to_poly(b), -1)


def _exact(v: float | int | bool, dtype: str) -> bool:
    """Constants that fold: finite, with few bits, so that products and sums of a few of them stay representable."""
    if isinstance(v, bool) or dtype == "bool" or v != v or v in (float("inf"), float("-inf")):
        return False
    return _few_bits(Fraction(v))


def _few_bits(f: Fraction) -> bool:
    """One float32 and a moderate one. A float between 1/2 and 1 may take 24 bits: its inverse is 2^24 over a number."""
    return abs(f.numerator) <= _BITS and f.denominator <= _BITS and Fraction(float(f)) == f


def number(c: Fraction, dtype: str) -> Expr:
    """A rational as a constant, or as a quotient of two where no float is equal to it: :func:`to_poly` reads the same one. On
    the way to it nothing is larger than a moderate float, if it is none itself."""
    if _few_bits(c):
        return Const(float(c), dtype)
    (up, i), (down, j) = _digits(abs(c.numerator), dtype), _digits(c.denominator, dtype)
    out = up if down == Const(1.0, dtype) else op("div", up, down)
    for _ in range(abs(i - j)):
        out = op("mul", out, Const(float(_BITS) if i > j else 1 / _BITS, dtype))
    return out if c > 0 else Op("neg", (out,), dtype)


def _digits(n: int, dtype: str) -> tuple[Expr, int]:
    """(e, i) with ``n == e * 2^(24 i)``, e between 1 and 2^24 and written digit by digit."""
    out: Expr | None = None
    i = 0
    while n > _BITS:
        n, low = divmod(n, _BITS)
        i += 1
        if out is not None or low:
            out = _plus_digit(out, low, dtype)
            out = op("mul", out, Const(1 / _BITS, dtype))
    return _plus_digit(out, n, dtype), i


def _plus_digit(e: Expr | None, digit: int, dtype: str) -> Expr:
    one = Const(float(digit), dtype)
    return one if e is None else op("add", one, e) if digit else e


def product(factors: Iterable[tuple[Expr, Fraction]], dtype: str, coefficient: Fraction = Fraction(1)) -> Expr:
    """Spell a product: factors in the given order, inverses as divisions, the coefficient last."""
    up: Expr | None = None
    down: Expr | None = None
    for base, p in factors:
        e = power(base, abs(p), dtype)
        if p > 0:
            up = e if up is None else op("mul", up, e)
        elif p < 0:
            down = e if down is None else op("mul", down, e)
    if coefficient == -1 and up is not None:
        up = Op("neg", (up,), dtype)
    elif coefficient != 1 or up is None:
        c = number(coefficient, dtype)
        up = c if up is None else op("mul", up, c)
    return up if down is None else Op("div", (up, down), dtype)


def power(base: Expr, p: Fraction, dtype: str) -> Expr:
    if p == 1:
        return base
    if p == Fraction(1, 2):
        return Op("sqrt", (base,), dtype)
    if p.denominator == 1 and 2 <= p <= 4:
        out = base
        for _ in range(int(p) - 1):
            out = Op("mul", (out, base), dtype)
        return out
    return Op("pow", (base, number(p, dtype)), dtype)


def from_poly(a: Poly, dtype: str) -> Expr:
    """Spell a normal form: positive terms first, each in canonical order."""
    if not a:
        return Const(0.0, dtype)
    terms = sorted(a.items(), key=lambda t: (t[1] < 0, [(key(b), p) for b, p in t[0]]))
    out: Expr | None = None
    for m, c in terms:
        if out is None:
            out = product(m, dtype, c)
        elif c < 0:
            out = Op("sub", (out, product(m, dtype, -c)), dtype)
        else:
            out = Op("add", (out, product(m, dtype, c)), dtype)
    assert out is not None
    return out
