"""What the checks excuse, and that they excuse nothing else."""

from __future__ import annotations

import numpy as np

from redfuser.acrf.check.domains import NUMPY
from redfuser.acrf.text import parse_cascade
from redfuser.chain.judge import Bands, Hidden, Want, digits, rule
from redfuser.chain.losses import losses
from redfuser.chain.truth import Wide, evaluate

CANCELS = """cascade c(x: f32[3, 500], y: f32[3, 500]) over l
  a[i] = sum[l] exp(x[i, l])
  b[i] = sum[l] exp(y[i, l])
  d[i] = log(a) - log(b)
  return a, d
"""


def want(exact: np.ndarray, program: np.ndarray, **more: object) -> Want:
    return Want(program, exact, "f32", lambda: [], 1e30, **more)  # type: ignore[arg-type]


def test_what_float64_loses_is_a_matter_of_the_terms() -> None:
    """A difference of equal logarithms is 0 by luck; the logarithms are not."""
    cascade = parse_cascade(CANCELS, "c.txt")
    x = np.random.default_rng(0).standard_normal((3, 500)).astype(np.float32) * np.float32(1e-18)
    given = {"x": x, "y": -x}
    found = losses(cascade, given, True)
    results = evaluate(cascade, given, Wide()).outputs()
    assert all(np.array_equal(found[n][0], results[n]) for n in results), "comparisons come out as they do in float64"
    assert (found["d"][0] == 0).all() and (found["d"][1] > 1e-16).all() and (found["d"][1] < 1e-13).all()
    lost: np.ndarray = 64 * found["d"][1]
    assert digits(results["d"] + 1e-16, results["d"]) and not digits(results["d"] + 1e-16, results["d"], lost=lost)
    assert digits(results["d"] + 1e-10, results["d"], lost=lost)
    bands = Bands(0, 3)
    sizes = np.array([1e-20, 1.0, 1e20])
    off = sizes * (1 + np.array([1e-6, 0, 0]))
    assert digits(off, sizes, bands, lost=1e-14 * sizes), "a band's loss is its own"
    assert digits(results["a"] * (1 + 1e-8), results["a"], lost=64 * found["a"][1])


def test_noise_may_be_any_number_of_its_size_and_nothing_more() -> None:
    exact, program = np.array([1e-37, 2e-37]), np.array([0.0, 0.0], np.float32)
    ours = np.array([2e-19, -1e-19], np.float32)
    assert "error" in rule(ours, want(exact, program))
    assert rule(ours, want(exact, program), np.full(2, 1e-6)) == ""
    assert "error" in rule(np.array([2e-19, 1e-5], np.float32), want(exact, program), np.full(2, 1e-6))
    good = np.array([1.0, 2.0])
    assert "error" in rule(np.array([1.0, 2.00001], np.float32), want(good, good.astype(np.float32)), np.full(2, 1e-3))


def test_overflow_is_one_class_but_the_infinities_are_two() -> None:
    inf = np.array([np.inf, 1.0])
    assert digits(np.array([np.nan, 1.0]), inf) == ""
    assert "class" in digits(np.array([-np.inf, 1.0]), inf) and "class" in digits(np.array([2.0, 1.0]), inf)
    assert "other" in rule(np.array([-np.inf, 1.0], np.float32), want(inf, inf.astype(np.float32)))
    assert rule(np.array([np.nan, 1.0], np.float32), want(inf, inf.astype(np.float32))) == ""


def test_one_lucky_result_of_a_band_does_not_make_the_limit() -> None:
    exact = 10.0 ** np.arange(0, 16, 2)
    off = np.array([4, 5, 0.1, 2, 3, 4, 1, 2]) * 2.0**-24
    program = (exact * (1 + off)).astype(np.float64)
    bands = Bands(0, 8)
    ours = exact * (1 + np.where(np.arange(8) == 2, 10 * 2.0**-24, off))
    assert rule(ours, want(exact, program, bands=bands)) == ""
    ours[2] = exact[2] * (1 + 40 * 2.0**-24)
    assert "error" in rule(ours, want(exact, program, bands=bands))
    program[7] *= 1.5  # a band that the program itself loses says nothing of the others
    assert "error" in rule(ours, want(exact, program, bands=bands))


def test_a_mask_may_hide_an_infinite_result() -> None:
    """A row that is masked altogether, and a NaN under the mask: -inf, as if the NaN were not there."""
    nan, infinite = np.full(2, np.nan), np.array([-np.inf, -np.inf])
    hidden = Hidden(np.array([True, False]), infinite.astype(np.float32), infinite)
    held = Want(nan.astype(np.float32), nan, "f32", lambda: [hidden], 1e30, has_nan=True)
    assert rule(np.array([-np.inf, np.nan], np.float32), held) == ""
    assert "class" in rule(np.array([np.inf, np.nan], np.float32), held)
    assert "class" in rule(np.array([-np.inf, -np.inf], np.float32), held)


def test_nan_may_stand_for_a_number_only_where_an_infinite_element_makes_a_result_infinite() -> None:
    exact = np.array([0.0, 0.0, 1.0])
    held = want(exact, exact.astype(np.float32), unbounded=np.array([True, False, True]))
    assert rule(np.array([np.nan, 0.0, 1.0], np.float32), held) == ""
    assert "class" in rule(np.array([0.0, np.nan, 1.0], np.float32), held)
    assert "class" in rule(np.array([0.0, 0.0, np.inf], np.float32), held) and "error" in rule(np.array([0, 0, 2.0]), held)


def test_results_of_few_values_are_those_values_and_nan() -> None:
    eight = np.array([np.nan, 448.0, 1.0]).astype(NUMPY["e4m3"])
    assert digits(eight, eight.astype(np.float64)) == ""
    assert digits(eight, np.array([np.nan, 448.0, 1.125])) and digits(eight, np.array([0.0, 448.0, 1.0]))


def test_a_place_beside_the_best_of_whole_numbers_is_another() -> None:
    """Of numbers with a point it may be the best, which a rounding hides."""
    numbers, best, ours = np.array([[2**26, 2**26 + 3]]), np.array([1]), np.array([0])
    for values, right in ((numbers, False), (numbers.astype(np.float64), True)):
        said = rule(ours, Want(best, best, "i64", lambda: [], 1e30, ranked=(values, values)))
        assert (said == "") == right
        assert rule(best, Want(best, best, "i64", lambda: [], 1e30, ranked=(values, values))) == ""


def test_at_the_top_of_a_dtype_the_allowed_error_may_be_an_infinity() -> None:
    exact = np.array([64500.0, 1000.0, 65540.0])
    program = np.array([59616.0, 1000.0, np.nan]).astype(np.float16)
    held = Want(program, exact, "f16", lambda: [], 1e30)
    assert rule(np.array([np.inf, 1000.0, 65504.0], np.float16), held) == ""
    for wrong in ([-1.0, -np.inf, 65504.0], [64500.0, np.inf, 65504.0], [np.nan, 1000.0, 65504.0]):
        assert "class" in rule(np.array(wrong, np.float16), held)
    sure = Want(exact[:2].astype(np.float16), exact[:2], "f16", lambda: [], 1e30)
    assert "class" in rule(np.array([np.inf, 1000.0], np.float16), sure)


def test_the_square_of_a_difference_that_is_zero_but_for_rounding_is_not_zero_to_the_last_bit() -> None:
    """Its bound to first order is 0, and any kernel's own rounding squared would be an error."""
    cascade = parse_cascade("cascade c(x: f32[3, 500]) over l\n m[i] = max[l] x[i, l]\n t[i] = sum[l] exp(x[i, l] - m)\n"
                            " h[i] = sum[l] exp(x[i, l] - m) / t * (x[i, l] - m - log(t))\n"
                            " s[i] = sum[l] exp(x[i, l] - m) / t * (x[i, l] - m - log(t) - h) * (x[i, l] - m - log(t) - h)\n"
                            " p[i] = sum[l] pow(x[i, l] - m - log(t) - h, 2.0)\n return s, p", "s.txt")
    given = {"x": np.full((3, 500), 1e-18, np.float32)}
    for unit, most in ((2.0**-53, 1e-25), (2.0**-24, 1e-8)):
        found = losses(cascade, given, True, unit)
        assert all((unit**2 < found[n][1]).all() and (found[n][1] < most).all() for n in ("s", "p"))


def test_what_is_too_large_to_be_compared_counts_as_size() -> None:
    """A centred row times 1e34: results beyond the limit may have overflowed on the way, those next to the mean have its error,
    which is a few units of the others."""
    exact = np.linspace(-1e34, 1e34, 2001)
    near = np.abs(exact) <= 1e30
    assert near.sum() == 1
    program = exact.astype(np.float32)
    off = (exact + 3e-8 * 1e34).astype(np.float32)
    assert rule(off, want(program, exact)) == ""
    assert "error" in rule((exact + 3e-6 * 1e34).astype(np.float32), want(program, exact))


def test_a_result_without_a_right_digit_may_be_infinite_in_the_program_alone() -> None:
    """Stored in half precision, what rounding left is an infinity in the program and 0 in the kernel."""
    exact, program = np.array([-3e14, 1.8e15, 2.0]), np.array([-np.inf, -np.inf, 2.0], np.float16)
    held, noise = Want(program, exact, "f16", lambda: [], 1e30), np.array([1e21, 1e21, 0.0])
    assert "class" in rule(np.array([0.0, 0.0, 2.0], np.float16), held)
    assert rule(np.array([0.0, 0.0, 2.0], np.float16), held, noise) == ""
    assert "class" in rule(np.array([0.0, 0.0, 2.0], np.float16), held, noise * 1e-9)
    assert "class" in rule(np.array([0.0, 0.0, np.inf], np.float16), held, noise)


def test_what_a_program_is_near_by_chance_once_its_squares_overflow() -> None:
    """A softmax of a norm: the root is infinite, the scores are 0, every weight is 1/n, which some exact weights are near. The
    kernel's NaN was refused for those, and so was every norm that a softmax follows."""
    exact = np.array([[0.9, 0.05, 0.05], [0.6, 0.3, 0.1]])
    program = np.full((2, 3), 1 / 3, np.float32)
    ours = np.full((2, 3), np.nan, np.float32)
    assert "class" in rule(ours, want(exact, program, extreme=True))
    assert rule(ours, want(exact, program, extreme=True, overflown=np.ones((2, 3), bool))) == ""
    assert "class" in rule(ours, want(exact, program, extreme=True, overflown=np.array([[True], [False]]) & np.ones((2, 3), bool)))
    assert "error" in rule(np.full((2, 3), 9.0, np.float32), want(exact, program, extreme=True, overflown=np.ones((2, 3), bool)))


def test_few_values_of_rows_that_overflow_are_the_programs() -> None:
    """A norm in front of its quantisation (RF903 wherever squares overflowed: 0, as the program, for -1.375), and a scale whose
    exponent a rounding made one larger (-256 for -448): what the program has itself, or is beside that, is right."""
    few = NUMPY["e4m3"]
    exact, program = np.array([-1.375, 2.0, 16.0]), np.array([0.0, 2.0, 0.0]).astype(few)

    def held(extreme: bool) -> Want:
        return Want(program, exact, "e4m3", lambda: [], 1e30, extreme=extreme)

    ours = np.array([0.0, 2.0, 0.0]).astype(few)
    assert rule(ours, held(False)) == "" and rule(ours, held(True)) == ""
    assert "step" in rule(np.array([-1.375, 2.0, 6.0]).astype(few), held(False)), "beside neither"
    assert "step" in rule(np.array([0.0, 4.0, 0.0]).astype(few), held(True)), "a result that the program has"
    assert "step" in rule(np.array([0.0, 2.0, 1.0]).astype(few), held(True)), "neither the program's nor right"


def test_where_float64_itself_decides_a_whole_number_either_will_do() -> None:
    """Half of the largest lies between two of 127 steps: dividing by 127 and multiplying with its inverse tell them apart."""
    cascade = parse_cascade("""cascade c(x: f16[2, 5]) over l
  m[i] = max[l] abs(x[i, l])
  u[i] = m / f16(127.0)
  y[i, l] = max(min(round(x[i, l] / u), f16(126.0)), f16(-126.0)) * u
  return y
""", "c.txt")
    given = {"x": np.array([[1.0, 0.5, 0.3, -0.2, 0.1], [1.0, 0.4, 0.3, -0.2, 0.1]], np.float16)}
    exact = evaluate(cascade, given, Wide()).outputs()["y"]
    lost = 64 * losses(cascade, given, True)["y"][1]
    step = 1 / 127
    for at, right in (((0, 1), True), ((0, 0), False), ((0, 2), False), ((1, 1), False)):
        other = exact.copy()
        other[at] += step
        assert digits(other, exact) and bool(digits(other, exact, lost=lost)) is not right
