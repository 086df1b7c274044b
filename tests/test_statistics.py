"""Closed-form cases, and calibration of the intervals where there is no closed form."""

import time

import numpy as np
import pytest
from scipy import stats

from maxinforl.errors import BadInput
from maxinforl.experiments import statistics as st

GRID = np.arange(0, 1001, 100.0)


def test_mean_and_standard_error_by_hand():
    mean, se, n = st.mean_se([[1.0, 5.0], [2.0, np.nan], [3.0, np.nan]])
    np.testing.assert_allclose(mean, [2.0, 5.0])
    np.testing.assert_allclose(se, [1 / np.sqrt(3), np.nan])
    assert n.tolist() == [3, 1]


@pytest.mark.parametrize(("confidence", "dof", "t"), [(0.95, 1, 12.7062), (0.95, 4, 2.77645), (0.90, 8, 1.85955)])
def test_the_interval_of_a_mean_uses_the_tabulated_t(confidence, dof, t):
    sample = np.random.default_rng(dof).normal(size=dof + 1)
    mean, se, _ = st.mean_se(sample)
    found = st.contrast([(1.0, sample)], confidence)
    assert (found.value, (found.high - mean) / se) == (pytest.approx(mean), pytest.approx(t, rel=1e-5))


def test_difference_is_scipys_welch_interval():
    x, y = np.random.default_rng(3).normal(size=(2, 7)) * [[1.0], [4.0]]
    expected = stats.ttest_ind(x, y[:5], equal_var=False).confidence_interval(0.95)
    found = st.difference(x, y[:5])
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_difference_is_welchs_interval():
    gap = st.difference([1, 2, 3, 4, 5], [0, 0, 1, 1, 2])
    # se^2 = 2.5/5 + 0.7/5; Welch-Satterthwaite dof 6.087; t = 2.4385
    assert gap.value == pytest.approx(2.2)
    assert gap.high - gap.value == pytest.approx(2.4385 * np.sqrt(0.64), rel=1e-3)
    assert gap.excludes(0) and not gap.excludes(1)


def test_one_seed_excludes_nothing():
    gap = st.difference([100.0], [0.0, 1.0])
    assert (gap.value, gap.low, gap.high) == (99.5, -np.inf, np.inf)
    assert not gap.excludes(0)


def test_welch_covers_at_five_seeds():
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 5))
    covered = np.mean([not st.difference(a, b).excludes(0.0) for a, b in zip(x, y * 3)])
    assert 0.93 < covered < 0.98


def test_iqm_drops_a_quarter_at_each_end():
    assert st.iqm([[0, 1, 3, 1000]]).value == 2.0
    assert st.iqm([[-9, 1, 2, 3, 99]]).value == pytest.approx((0.75 * 1 + 2 + 0.75 * 3) / 2.5)


def test_iqm_gives_tasks_equal_weight_whatever_their_seeds():
    assert st.iqm([[0.0] * 10, [1.0]]).value == pytest.approx(0.5)


def test_iqm_interval_covers_the_true_value():
    generator = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        tasks = [generator.normal(loc, 1, 20) for loc in (-1, 0, 1)]
        point = st.iqm(tasks, resamples=300, seed=trial)
        covered += point.low <= 0.0 <= point.high
    assert 0.90 <= covered / 200 <= 1.0  # stratified: the population IQM of the symmetric mixture is 0


def test_definitions_agree_with_rliable():
    """In rliable, IQM is `trim_mean(scores, 0.25)` over runs and tasks; P(X > Y) is the Mann-Whitney U / (n m)."""
    generator = np.random.default_rng(4)
    ours, theirs = generator.normal(0.3, size=(6, 4)).round(1), generator.normal(size=(6, 8)).round(1)  # with ties
    assert st.iqm(list(ours)).value == pytest.approx(stats.trim_mean(ours, 0.25, axis=None))
    wins = [stats.mannwhitneyu(x, y, alternative="greater").statistic / (len(x) * len(y)) for x, y in zip(ours, theirs)]
    assert st.probability_of_improvement(list(ours), list(theirs)).value == pytest.approx(np.mean(wins))
    fraction = st.performance_profile(list(ours), [0.0, 0.5])[0]
    assert fraction == pytest.approx([(ours > 0.0).mean(), (ours > 0.5).mean()])


def test_bootstrap_intervals_by_enumeration():
    """Two seeds, 0 and 1: a resample has IQM 0, 1/2, 1 with probability 1/4, 1/2, 1/4."""
    interval = lambda confidence: st.iqm([[0.0, 1.0]], resamples=4000, confidence=confidence)
    wide, narrow = interval(0.52), interval(0.48)  # quantiles 0.24 and 0.76, then 0.26 and 0.74
    assert (wide.low, wide.high) == (0.0, 1.0) and (narrow.low, narrow.high) == (0.5, 0.5)
    # Against a baseline of 1/2, P(better) of a resample is the share of ones: the same distribution.
    better = lambda confidence: st.probability_of_improvement([[0.0, 1.0]], [[0.5, 0.5]], 4000, 1, confidence)
    assert (better(0.52).low, better(0.52).high, better(0.48).low, better(0.48).high) == (0.0, 1.0, 0.5, 0.5)


def test_bootstrap_stays_within_its_task():
    point = st.iqm([[0.0] * 5, [10.0] * 5])
    np.testing.assert_allclose([point.low, point.value, point.high], 5.0)


def test_one_seed_of_some_task_leaves_the_bootstrap_undefined():
    one, two, curve = [[3.0]], [[1.0, 2.0], [3.0]], np.array([[0.0, 1.0], [2.0, np.nan]])
    hit = st.Hits(np.array([5.0]), np.array([True]))
    hits = st.Hits(np.array([5.0, 7.0, 9.0]), np.array([True, True, True]))
    points = [st.iqm(one), st.iqm(two), st.probability_of_improvement(one, [[1.0, 2.0]]), st.median_steps(hit)]
    points += [st.probability_of_improvement([[1.0, 2.0]], one), st.ratio_of_medians(hit, hits)]
    points += [st.ratio_of_medians(hits, hit)]
    for point in points:
        assert np.isfinite(point.value) and np.isnan([point.low, point.high]).all()
        assert point.n == 1 and not point.excludes(-100.0)
    for scores in (one, two):
        fraction, low, high = st.performance_profile(scores, [0.0, 2.5])
        assert np.isfinite(fraction).all() and np.isnan([low, high]).all()
    value, low, high = st.sample_efficiency([curve], resamples=50)
    np.testing.assert_allclose(value, [1.0, 1.0])
    assert np.isfinite([low[0], high[0]]).all() and np.isnan([low[1], high[1]]).all()


def test_chunks_of_resamples_do_not_change_the_draws():
    tasks = [np.arange(5.0), np.arange(7.0)]
    whole, parts = (np.concatenate(list(st._stratified(tasks, 50, 3, chunk))) for chunk in (10**6, 24))
    assert whole.shape == parts.shape == (50, 12)
    assert (whole[:, :5] < 5).all() and (whole[:, 5:] >= 5).all() and (whole[:, 5:] < 12).all()


def test_performance_profile_is_the_tail_of_the_empirical_distribution():
    fraction, low, high = st.performance_profile([[1, 2, 3, 4], [2, 2]], [0, 1, 2, 4])
    np.testing.assert_allclose(fraction, [1, (3 / 4 + 1) / 2, (2 / 4 + 0) / 2, 0])
    assert (low <= fraction + 1e-12).all() and (fraction <= high + 1e-12).all()
    assert low[0] == pytest.approx(1) and high[-1] == 0


def test_probability_of_improvement_by_counting_pairs():
    point = st.probability_of_improvement([[1, 2], [5, 5]], [[0, 2], [1, 2]])
    assert point.value == pytest.approx(((1 + 0 + 1 + 0.5) / 4 + 1) / 2)
    assert point.low <= point.value <= point.high <= 1.0
    same = st.probability_of_improvement([np.arange(9)], [np.arange(9)])
    assert same.value == 0.5 and not same.excludes(0.5)


def test_area_under_a_straight_line():
    area = st.area_under_curve([0, 10, 40], [[0, 10, 40], [7, 7, 7], [0, 1, np.nan]])
    np.testing.assert_allclose(area, [20, 7, np.nan])


def test_on_grid_interpolates_and_never_extrapolates():
    curves = st.on_grid([[0, 10], [5, 20]], [[0, 100], [1, np.nan]], [0, 5, 10, 20])
    np.testing.assert_allclose(curves, [[0, 50, 100, np.nan], [np.nan, 1, np.nan, np.nan]])


def test_sample_efficiency_of_flat_and_missing_curves():
    full, short = np.full((4, 3), 2.0), np.full((4, 3), 4.0)
    short[:, 2] = np.nan
    value, low, high = st.sample_efficiency([full, short], resamples=50)
    np.testing.assert_allclose(value, [3, 3, np.nan])
    np.testing.assert_allclose(low[:2], high[:2])


def ramps(arrivals):
    """Curves that jump from 0 to 1 at the given steps."""
    return (np.asarray(arrivals)[:, None] <= GRID).astype(float)


def test_steps_to_threshold_and_censoring():
    curves = ramps([200, 900, 5000])
    curves[1, 7:] = np.nan  # stopped before it could arrive
    hits = st.steps_to_threshold(GRID, curves, 0.5)
    assert hits.step.tolist() == [200, 600, 1000]
    assert hits.reached.tolist() == [True, False, False]


def test_a_threshold_must_hold():
    curve = np.array([[0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0]])
    assert st.steps_to_threshold(GRID, curve, 1, hold=1).step == 100
    assert st.steps_to_threshold(GRID, curve, 1, hold=3).step == 400
    assert not st.steps_to_threshold(GRID, curve, 1, hold=4).reached
    assert not st.steps_to_threshold(GRID[:2], curve[:, :2], 1, hold=3).reached


def test_median_without_censoring_is_the_order_statistic():
    point = st.median_steps(st.steps_to_threshold(GRID, ramps([100, 200, 300, 400, 900]), 1))
    assert (point.value, point.censored, point.n) == (300, 0, 5)
    assert 100 <= point.low <= 300 <= point.high <= 900


def test_median_with_early_stops_is_kaplan_meiers():
    # Survival 4/5 at 100; the run stopped at 150 leaves; 4/5 * 2/3 at 200; 4/5 * 1/3 at 300.
    hits = st.Hits(np.array([100.0, 150, 200, 300, 400]), np.array([True, False, True, True, True]))
    assert st.median_steps(hits).value == 300
    dropped = st.Hits(hits.step[[0, 2, 3, 4]], hits.reached[[0, 2, 3, 4]])
    assert st.median_steps(dropped).value == 200  # what pretending the run never existed would have said


def test_median_not_reached_is_infinite_and_keeps_the_horizon():
    point = st.median_steps(st.steps_to_threshold(GRID, ramps([100, 5000, 5000, 5000]), 1))
    assert (point.value, point.high, point.horizon, point.censored) == (np.inf, np.inf, 1000, 3)
    assert point.low >= 100


def test_ratio_of_medians():
    fast = st.steps_to_threshold(GRID, ramps([100, 200, 200, 200, 300]), 1)
    slow = st.steps_to_threshold(GRID, ramps([700, 800, 800, 800, 900]), 1)
    never = st.steps_to_threshold(GRID, ramps([5000] * 5), 1)
    ratio = st.ratio_of_medians(fast, slow)
    assert ratio.value == 0.25 and ratio.high < 1
    against_never = st.ratio_of_medians(fast, never)
    assert (against_never.value, against_never.low) == (0, 0)
    assert against_never.high == pytest.approx(0.3)  # at worst 300 steps against just over 1000
    neither = st.ratio_of_medians(never, never)
    assert np.isnan(neither.value) and (neither.low, neither.high) == (0, np.inf) and not neither.excludes(1)
    at_once = st.Hits(np.zeros(3), np.ones(3, bool))
    assert not st.ratio_of_medians(at_once, at_once).excludes(1)


def test_normalisation_states_itself():
    dmc = st.normalisation("dmc/cartpole-swingup_sparse")
    assert dmc(500) == 0.5 and "1000" in str(dmc)
    relative = st.normalisation("Pendulum-v1", [-1600.0, np.nan, -100.0])
    np.testing.assert_allclose(relative([-1600, -100]), [0, 1])
    assert "runs compared" in str(relative)
    assert np.isfinite(st.normalisation("Pendulum-v1", [3.0])([3.0])).all()
    with pytest.raises(BadInput, match="no scores"):
        st.normalisation("Pendulum-v1")


@pytest.mark.parametrize("scores", [[], [[]], [[1.0], []], [[np.nan]]])
def test_nothing_is_invented_for_missing_runs(scores):
    with pytest.raises(BadInput):
        st.iqm(scores)


def test_a_thousand_curves_are_quick():
    start = time.process_time()
    generator = np.random.default_rng(0)
    methods = generator.normal(size=(2, 20, 50, 100)).cumsum(-1)  # methods, tasks, seeds, points
    for curves in methods[1:]:
        flat = curves.reshape(-1, 100)
        st.mean_se(curves, axis=1)
        area = st.area_under_curve(np.arange(100), flat).reshape(20, 50)
        st.iqm(list(area))
        st.performance_profile(list(area), np.linspace(-10, 10, 50))
        st.probability_of_improvement(list(area), list(methods[0, :, :, -1]))
        st.sample_efficiency(list(curves[:, :, ::4]), resamples=100)
        st.median_steps(st.steps_to_threshold(np.arange(100), flat, 5.0), resamples=200)
    assert time.process_time() - start < 4
