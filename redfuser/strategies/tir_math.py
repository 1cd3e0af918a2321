"""Functions that LLVM would call a library for, element by element, as float32 arithmetic that it keeps in vector registers.

exp and exp2 split their argument into n log(2) + r, with a polynomial in r and n put into the exponent in two steps, so that
results run through the subnormals to 0 and reach infinity where they have to; tanh and erf are odd polynomials near 0 and
made of an exponential elsewhere. NaN comes through, exp(0) is 1, odd functions keep the sign of 0. Errors are below two units
in the last place (tests/numeric/test_cpu_functions.py). Other functions and types keep the library's: one value per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Bind = Callable[[str, str], str]
"""Names the value of a text: (text, TVM dtype) -> a name."""

_EXP = (1.0, 1.0, 0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975, 0.001381446490995586)
"""Of e^r for |r| <= log(2) / 2: minimax, relative error 2^-28."""
_TANH = (1.0, -0.3333328366279602, 0.13331490755081177, -0.05374349281191826, 0.020650574937462807, -0.005717032589018345)
"""Of tanh(x) / x in x^2 for |x| <= 0.625: minimax, relative error 2^-28."""
_ERF_NEAR = (0.12837916612625122, -0.37612631916999817, 0.11283686012029648, -0.026858817785978317, 0.00519951805472374,
             -0.0008124894229695201, 8.292828715639189e-05)
"""Of erf(x) / x - 1 in x^2 for |x| <= 475 / 512: minimax, 2^-30."""
_ERF_FAR = (-1.1286522150039673, -0.6351358890533447, -0.10626314580440521, 0.023785345256328583, -0.0036537630949169397,
            0.00032565247965976596, -1.1522271051944699e-05)
"""Of log(1 - erf(x)) / x for 475 / 512 < x <= 4, where erf rounds to 1: minimax, 2^-30 of erf."""
_ROUND, _ROUND_BITS, _BIAS = 12582912.0, 0x4B400000, 127
"""1.5 * 2^23: what is added to it is rounded to an integer, which its last bits then are."""


def inline(name: str, x: str, bind: Bind) -> str | None:
    """The text of ``name`` of the float32 text ``x``; None for a function that is the library's."""
    made = _FUNCTIONS.get(name)
    return made(bind(x, "float32"), bind) if made is not None else None


def _exp(x: str, bind: Bind) -> str:
    c = _clamped(x, -104.0, 89.0, bind)
    shifted = bind(f"({c} * {_f(1.4426950408889634)} + {_f(_ROUND)})", "float32")
    n = bind(f"({shifted} - {_f(_ROUND)})", "float32")
    r = bind(f"(({c} - {n} * {_f(0.693359375)}) - {n} * {_f(-2.12194440e-4)})", "float32")
    return _scaled(_polynomial(_EXP, r), shifted, bind)


def _exp2(x: str, bind: Bind) -> str:
    c = _clamped(x, -151.0, 129.0, bind)
    shifted = bind(f"({c} + {_f(_ROUND)})", "float32")
    r = bind(f"(({c} - ({shifted} - {_f(_ROUND)})) * {_f(0.6931471805599453)})", "float32")
    return _scaled(_polynomial(_EXP, r), shifted, bind)


def _tanh(x: str, bind: Bind) -> str:
    a, z = bind(f"T.abs({x})", "float32"), bind(f"({x} * {x})", "float32")
    grown = bind(_exp(bind(f"({a} + {a})", "float32"), bind), "float32")
    far = bind(f"({_f(1.0)} - {_f(2.0)} / ({grown} + {_f(1.0)}))", "float32")
    return f"T.Select({a} < {_f(0.625)}, {x} * {_polynomial(_TANH, z)}, {_signed(far, x)})"


def _erf(x: str, bind: Bind) -> str:
    a, z = bind(f"T.abs({x})", "float32"), bind(f"({x} * {x})", "float32")
    t = _clamped(a, 0.0, 4.0, bind)
    exponent = bind(f"({t} * {_polynomial(_ERF_FAR, t)})", "float32")
    far = bind(f"({_f(1.0)} - {bind(_exp(exponent, bind), 'float32')})", "float32")
    return f"T.Select({a} > {_f(475 / 512)}, {_signed(far, x)}, {_polynomial(_ERF_NEAR, z)} * {x} + {x})"


def _sigmoid(x: str, bind: Bind) -> str:
    return f"({_f(1.0)} / ({_f(1.0)} + {_exp(bind(f'(-{x})', 'float32'), bind)}))"


_FUNCTIONS: dict[str, Callable[[str, Bind], str]] = {
    "exp": _exp, "exp2": _exp2, "tanh": _tanh, "erf": _erf, "sigmoid": _sigmoid}

WRITTEN = {"exp": 1, "exp2": 1, "tanh": 1, "erf": 2, "sigmoid": 1}
"""How deep the functions' names for values lie in one another."""


def _scaled(text: str, shifted: str, bind: Bind) -> str:
    """``text`` times 2^n, n the last bits of ``shifted``: half of n at a time, since 2^n itself may be no normal number. Here n
    has the biases of both halves."""
    n = bind(f'(T.reinterpret("int32", {shifted}) - {_ROUND_BITS - 2 * _BIAS})', "int32")
    half = bind(f"T.shift_right({n}, 1)", "int32")

    def power(biased: str) -> str:
        return f'T.reinterpret("float32", T.shift_left({biased}, 23))'

    return f"({text} * {power(half)} * {power(f'({n} - {half})')})"


def _polynomial(coefficients: Sequence[float], x: str) -> str:
    text = _f(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {_f(c)})"
    return text


def _clamped(x: str, low: float, high: float, bind: Bind) -> str:
    """One instruction for each bound, since each compares what it may keep. NaN stays."""
    above = bind(f"T.Select({x} < {_f(low)}, {_f(low)}, {x})", "float32")
    return bind(f"T.Select({above} > {_f(high)}, {_f(high)}, {above})", "float32")


def _signed(text: str, x: str) -> str:
    return f"T.Select({x} < {_f(0.0)}, -{text}, {text})"


def _f(value: float) -> str:
    return f"T.float32({value!r})"
