"""Draws, splits, fits, and what a study runs next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.hpo.scaling_fit import fit
from app.hpo.space import Bounds, Split, log_grid
from app.hpo.strategies import Study, decide, runs_of, slots, winner
from app.hpo.study_draws import Draws
from core.contracts.hpo import GridOracle, GridPoints, Hpo, LinearScaling, Random, RandomK, Space

HPO: TypeAdapter[Hpo] = TypeAdapter(Hpo)
BOUNDS = Bounds((0.01, 100.0), (5, 100), None, None)
INSIDE = 1.0 + 1e-9


def linear(**fields: object) -> Study:
    return Study(LinearScaling.model_validate({"levels": [0.01, 0.05]} | fields), BOUNDS, "seed", (0.02, 0.05), 0.24)


def test_linear_scaling_is_the_default() -> None:
    assert HPO.validate_python({}) == LinearScaling()
    assert HPO.validate_python({"levels": [0.1, 0.3]}).levels == [0.1, 0.3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bad",
    [
        {"levels": [0.2, 0.1]},
        {"levels": [0.1]},
        {"curve": "quadratic"},
        {"space": {"learning_rate": [10.0, 1.0]}},
        {"space": {"points": {}}},
        {"strategy": "random", "score": {"kind": "public"}},
        {"strategy": "grid_oracle", "space": {"steps": [1, 1000], "points": {"learning_rate": 50, "steps": 50}}},
        {"strategy": "magic"},
    ],
)
def test_nonsense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HPO.validate_python(bad)


def test_draws_are_those_of_the_seed_and_uniform() -> None:
    one, other, third = Draws("a", "x"), Draws("a", "x"), Draws("b", "x")
    drawn = [one.uniform() for _ in range(2000)]
    assert drawn == [other.uniform() for _ in range(2000)]
    assert drawn[0] != third.uniform()
    assert min(drawn) > 0.0 and max(drawn) < 1.0
    # Kolmogorov-Smirnov at 2,000 draws: above 0.0365 once in a hundred seeds, and this is one seed.
    gap = max(abs(value - (k + 0.5) / 2000) for k, value in enumerate(sorted(drawn)))
    assert gap < 0.0365


@given(
    st.floats(-6, 3),
    st.floats(0, 4),
    st.integers(1, 300),
    st.integers(0, 300),
    st.none() | st.tuples(st.floats(-2, 2), st.floats(0, 2)),
    st.sampled_from(["steps", "sample", "both"]),
    st.text(max_size=5),
    st.floats(-1.0, 2.0),
)
@settings(max_examples=80)
def test_splits_stay_within_bounds(
    low: float,
    width: float,
    shortest: int,
    more: int,
    norm: tuple[float, float] | None,
    split: Split,
    seed: str,
    place: float,
) -> None:
    norms = (10.0 ** norm[0], 10.0 ** (norm[0] + norm[1])) if norm else None
    bounds = Bounds((10.0**low, 10.0 ** (low + width)), (shortest, shortest + more), norms, None)
    r = bounds.r[0] * (bounds.r[1] / bounds.r[0]) ** place  # outside the space too
    for point in (bounds.draw_by_r(split, Draws(seed, "d")), bounds.split(r, split, Draws(seed, "s"))):
        assert bounds.learning_rate[0] / INSIDE <= point.learning_rate <= bounds.learning_rate[1] * INSIDE
        assert bounds.steps[0] <= point.steps <= bounds.steps[1]
        assert norms is None or norms[0] <= (point.max_grad_norm or 0.0) <= norms[1]
    if split == "steps" and width > 1.0 and 0.3 < place < 0.7:
        point = bounds.split(r, split, Draws(seed, "s"))
        assert point.r == pytest.approx(r, rel=1e-9)


def test_r_is_log_uniform_and_split_exactly() -> None:
    points = [BOUNDS.draw_by_r("steps", Draws(str(k), "")) for k in range(500)]
    logs = sorted(math.log(each.r) for each in points)
    least, most = (math.log(each) for each in BOUNDS.r)
    gap = max(abs((value - least) / (most - least) - (k + 0.5) / 500) for k, value in enumerate(logs))
    assert gap < 0.073


def test_r_is_log_uniform_where_it_is_split_by_sampling() -> None:
    """Kolmogorov-Smirnov: above 1.63/√300 once in a hundred seeds. An r drawn anew at every try has the triangular
    density of ln η + ln T here, 1/8 from uniform."""
    bounds = Bounds((0.1, 10.0), (10, 1000), None, None)
    logs = sorted(math.log(bounds.draw_by_r("sample", Draws(str(k), "")).r) for k in range(300))
    least, most = (math.log(each) for each in bounds.r)
    gap = max(abs((value - least) / (most - least) - (k + 0.5) / 300) for k, value in enumerate(logs))
    assert gap < 0.094


def test_levels_at_one_place_are_no_crash() -> None:
    for curve, count in (("line", 2), ("line", 3), ("quadratic", 3)):
        found = fit((0.02,) * count, (30.0, 10.0, 20.0)[:count], 0.04, (0.05, 1e4), curve)  # type: ignore[arg-type]
        assert found.fallbacks[-1] == "proportional"
    assert fit((0.1, 0.1, 0.2), (1.0, 2.0, 3.0), 0.4, (0.05, 1e4), "quadratic").r_star > 3.0


def test_a_final_run_with_less_than_a_pilot_has_is_not_below_it() -> None:
    found = fit((0.02, 0.2), (1.0, 10.0), 0.05, (0.05, 1e4))
    assert (found.r_star, found.fallbacks) == (10.0, ("best-pilot",))


def test_a_log_grid_has_both_bounds() -> None:
    assert log_grid(0.01, 100.0, 5) == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert len(Bounds((0.1, 1.0), (5, 7), (1.0, 1.0), GridPoints(steps=5)).grid()) == 7 * 3 * 1


def test_a_line_through_two_levels() -> None:
    found = fit((0.02, 0.05), (10.0, 25.0), 0.24, (0.05, 1e4))
    assert found.r_star == pytest.approx(120.0)
    assert found.fallbacks == ()


def test_three_levels() -> None:
    xs, rs = (1.0, 2.0, 3.0), (1.0, 4.0, 9.0)
    assert fit(xs, rs, 5.0, (0.1, 100.0), "quadratic").r_star == pytest.approx(25.0)
    assert fit(xs, rs, 5.0, (0.1, 100.0)).r_star == pytest.approx(4.0 * 5.0 - 10.0 / 3.0)
    bent = fit(xs, (1.0, 8.0, 9.0), 5.0, (0.1, 100.0), "quadratic")
    assert bent.fallbacks == ("line-for-quadratic",)
    assert bent.r_star == pytest.approx(6.0 + 4.0 * 3.0)


def test_a_line_that_falls_does_not_send_the_final_run_down() -> None:
    found = fit((0.02, 0.05), (30.0, 20.0), 0.24, (0.05, 1e4))
    assert found.r_star == pytest.approx(20.0 * 0.24 / 0.05)
    assert found.fallbacks == ("proportional",)


def test_what_leads_out_of_the_space_is_clipped() -> None:
    found = fit((0.02, 0.05), (10.0, 2500.0), 0.24, (0.05, 1e4))
    assert (found.r_star, found.fallbacks) == (1e4, ("clipped",))


@given(
    st.lists(st.floats(-3, 4), min_size=2, max_size=3),
    st.floats(1.0, 50.0),
    st.sampled_from(["line", "quadratic"]),
)
def test_the_final_run_is_never_below_the_best_pilot(logs: list[float], stretch: float, curve: str) -> None:
    rs = tuple(10.0**each for each in logs)
    xs = tuple(0.1 * (k + 1) for k in range(len(rs)))
    kind = "quadratic" if curve == "quadratic" and len(rs) == 3 else "line"
    found = fit(xs, rs, xs[-1] * stretch, (1e-3, 1e4), kind)  # type: ignore[arg-type]
    assert found.r_star >= rs[-1] * (1.0 - 1e-9)


def test_the_final_run_comes_when_all_pilots_are_scored() -> None:
    study = linear()
    assert [each.role for each in slots(study.hpo, BOUNDS)] == ["pilot"] * 6 + ["final"]
    pilots = runs_of(study, {})
    assert [run.level for run in pilots] == [0, 0, 0, 1, 1, 1]
    assert runs_of(study, dict.fromkeys(range(5), 0.5)) == pilots
    scores = {0: 0.1, 1: 0.4, 2: 0.4, 3: 0.2, 4: 0.1, 5: 0.9}
    *same, final = runs_of(study, scores)
    decision = decide(study, pilots, scores)
    assert same == pilots
    assert decision.best == (1, 5)  # of equal scores the first
    assert final.point.r == pytest.approx(decision.fit.r_star, rel=1e-9)
    assert runs_of(study, scores) == [*pilots, final]
    assert winner(study, scores | {6: 0.0}) == 6


@pytest.mark.parametrize("norms", [None, (0.1, 1.0)])
def test_the_final_run_is_as_long_as_its_r_allows(norms: tuple[float, float] | None) -> None:
    bounds = Bounds((0.01, 100.0), (5, 100), norms, None)
    for product, steps in ((1e4, 100), (150.0, 100), (0.2, 20), (1e-6, 5)):
        r = product * (norms[0] if norms else 1.0)
        narrow = bounds.longest(r)
        assert narrow.steps == (steps, steps)
        point = narrow.split(r, "steps", Draws("s", "final"))
        assert point.steps == steps and (r < bounds.r[0] or point.r == pytest.approx(r, rel=1e-9))
    scores = {0: 0.1, 1: 0.4, 2: 0.4, 3: 0.2, 4: 0.1, 5: 0.9}
    (longest, drawn) = (runs_of(linear(final_steps=how), scores)[-1].point for how in ("longest", "drawn"))
    assert longest.steps >= drawn.steps and longest.r == pytest.approx(drawn.r, rel=1e-9)


def test_the_order_of_results_changes_nothing() -> None:
    study = linear()
    scores = {n: 0.1 * n for n in range(6)}
    assert runs_of(study, scores) == runs_of(study, dict(reversed(scores.items())))


def test_losses_are_better_where_they_are_smaller() -> None:
    study = Study(RandomK(runs=3), BOUNDS, "s", larger_is_better=False)
    assert winner(study, {0: 0.7, 1: 0.2, 2: 0.5}) == 1
    assert len(runs_of(study, {})) == 3


def test_the_other_strategies() -> None:
    assert [run.role for run in runs_of(Study(Random(), BOUNDS, "s"), {})] == ["final"]
    oracle = GridOracle(space=Space(learning_rate=(0.01, 100.0), steps=(5, 100)))
    bounds = Bounds.of(oracle.space, 50)
    runs = runs_of(Study(oracle, bounds, "s"), {})
    assert len(runs) == len(slots(oracle, bounds)) == 35
    assert len({run.point for run in runs}) == 35


def test_steps_are_the_plans_where_they_are_not_searched() -> None:
    bounds = Bounds.of(Space(learning_rate=(0.01, 100.0)), 50)
    assert {run.point.steps for run in runs_of(Study(RandomK(), bounds, "s"), {})} == {50}
