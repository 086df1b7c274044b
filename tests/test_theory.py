"""The theory experiments: each statement holds where it should, and fails where its assumption is taken away."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from maxinforl.errors import BadInput
from maxinforl.experiments import theory, verdicts
from maxinforl.experiments.theory import bandit_figure, gp_bandit, kl_trajectories, soft_mdp


@pytest.fixture(scope="module", params=["rbf", pytest.param("linear", marks=pytest.mark.slow)])
def runs(request):
    return gp_bandit.bandit(request.param, seeds=12, rounds=1000)


MAXINFO = [name for name in gp_bandit.RULES if name.startswith("eps-maxinfo")]


def test_posterior_agrees_with_the_matrix_formula():
    problem = gp_bandit.rbf_problem([0, 1], arms=40)
    posterior, generator = gp_bandit.Posterior(problem.root, 0.1), np.random.default_rng(0)
    arms, y = generator.integers(40, size=(2, 25)), generator.normal(size=(2, 25))
    for t in range(25):
        posterior.observe(arms[:, t], y[:, t])
    for s in range(2):
        kernel = problem.root[s] @ problem.root[s].T
        solve = np.linalg.solve(kernel[np.ix_(arms[s], arms[s])] + 0.01 * np.eye(25), np.c_[y[s], kernel[arms[s]]])
        cross = kernel[:, arms[s]]
        np.testing.assert_allclose(posterior.mean[s], cross @ solve[:, 0], atol=1e-8)
        np.testing.assert_allclose(posterior.variance[s], np.diag(kernel) - (cross * solve[:, 1:].T).sum(1), atol=1e-8)


def test_the_root_reproduces_the_rbf_kernel():
    x = np.linspace(0, 1, 100)
    root = gp_bandit.rbf_problem([0]).root[0]
    np.testing.assert_allclose(root @ root.T, np.exp(-((x[:, None] - x) ** 2) / 0.02), atol=1e-8)


def test_problems_have_range_one():
    for make in gp_bandit.PROBLEMS.values():
        np.testing.assert_allclose(np.ptp(make([3, 4]).objective, axis=1), 1.0)


def test_a_seed_plays_the_same_alone_and_among_others():
    together = gp_bandit.bandit(seeds=[5, 6], rounds=60)
    alone = gp_bandit.bandit(seeds=[6], rounds=60)
    for name, run in together.items():
        np.testing.assert_allclose(run.regret[1], alone[name].regret[0], atol=1e-9)


@pytest.mark.parametrize("name", MAXINFO)
def test_maxinfo_regret_is_sublinear(runs, name):
    regret = runs[name].regret
    per_round = regret.mean(0)[[124, 249, 499, 999]] / [125, 250, 500, 1000]
    assert gp_bandit.slope(regret) < 0.9
    assert (np.diff(per_round) < 0).all()


@pytest.mark.parametrize("name", ["greedy", "uncertainty"])
def test_one_sided_rules_have_linear_regret(runs, name):
    assert gp_bandit.slope(runs[name].regret) > 0.9


def test_slopes_are_ordered_with_a(runs):
    assert (np.diff([gp_bandit.slope(runs[name].regret) for name in MAXINFO]) > 0).all()


def test_optimism_beats_both(runs):
    assert runs["gp-ucb"].regret[:, -1].mean() < 20 > runs["thompson"].regret[:, -1].mean()


@pytest.mark.parametrize("name", MAXINFO)
def test_variance_lemma_holds_along_the_run(runs, name):
    assert gp_bandit.variance_ratio(runs[name]).max() <= 1 + 1e-10


def test_variance_lemma_needs_exploration_by_uncertainty(runs):
    assert gp_bandit.variance_ratio(runs["eps-uniform a=1/3"]).max() > 1.1


@pytest.mark.parametrize("name", MAXINFO)
def test_calibration_and_the_explicit_regret_bound(runs, name):
    assert (runs[name].miscalibration <= gp_bandit.confidence_width(runs[name])).all()
    printed = gp_bandit.confidence_width(runs[name], factor=gp_bandit.NOISE)
    assert (runs[name].miscalibration > printed).any()  # the erratum
    assert (runs[name].regret <= gp_bandit.regret_bound(runs[name])).all()


@pytest.mark.parametrize("a", [0.3, 1 / 3, 0.4])
def test_exploration_lemma(a):
    t = np.arange(1.0, 20_001)
    for seed in range(10):
        explored = gp_bandit.explorations(a, len(t), seed)
        assert explored[0] == 1  # epsilon_1 = 1
        assert (explored >= gp_bandit.exploration_bound(a, len(t))).all()
        assert (explored >= t ** (2 * a) / (4 * a))[100:].all()
        assert explored[-1] == pytest.approx(t[-1] ** (2 * a) / (2 * a), rel=0.25)


def test_balanced_exponent():
    assert gp_bandit.bound_exponent(1 / 3) == pytest.approx(2 / 3)
    assert min(np.linspace(0.26, 0.49, 24), key=gp_bandit.bound_exponent) == pytest.approx(1 / 3, abs=0.01)


def test_bandit_refuses_nonsense():
    with pytest.raises(BadInput, match="kernel"):
        gp_bandit.bandit("cubic")
    with pytest.raises(BadInput, match=r"a = 0\.7"):
        gp_bandit.bandit(rules={"wild": gp_bandit.Rule("mean", "uniform", 0.7)})
    with pytest.raises(BadInput, match="at least one seed"):
        gp_bandit.bandit(seeds=0)
    with pytest.raises(BadInput, match="choice"):
        gp_bandit.bandit(rules={"odd": gp_bandit.Rule("median")}, rounds=1)


@pytest.mark.parametrize("seed", range(5))
def test_soft_policy_iteration(seed):
    result = soft_mdp.soft_policy_iteration(seed=seed)
    assert result.contraction.max() <= result.gamma + 1e-10
    assert result.optimality_contraction.max() <= result.gamma + 1e-10
    assert result.contraction.max() > 0.9 * result.gamma  # the probes come near the worst case
    assert result.improvement.min() >= -1e-10 and result.improvement[0] > 0.1
    assert result.gap[0] > 1 and result.fixed_point_gap <= 1e-10
    assert result.dominance >= -1e-10
    assert result.reduction_gap <= 1e-10


def test_evaluation_solves_the_soft_bellman_equation():
    mdp = soft_mdp.random_mdp(1)
    policy = np.random.default_rng(0).dirichlet(np.ones(5), size=20)
    q = mdp.evaluate(policy)
    np.testing.assert_allclose(q, mdp.backup(mdp.value(policy, q)), atol=1e-12)


def test_improving_without_the_bonus_is_not_monotone():
    """The check bites: a policy step that forgets alpha2 I lowers Q somewhere."""
    mdp = soft_mdp.random_mdp(0)
    best = mdp.improve(mdp.optimum())
    forgetful = replace(mdp, alpha2=0.0).improve(mdp.evaluate(best))
    assert (mdp.evaluate(forgetful) - mdp.evaluate(best)).min() < -1e-3


def test_the_printed_auxiliary_reward_needs_its_discount():
    """r + E[...] in place of r + gamma E[...] evaluates to another Q."""
    mdp = soft_mdp.random_mdp(0)
    policy = np.full((20, 5), 0.2)
    extra = mdp.value(policy, np.zeros((20, 5)))
    flow = np.einsum("sat,tb->satb", mdp.transition, policy).reshape(100, 100)
    solve = lambda factor: np.linalg.solve(
        np.eye(100) - mdp.gamma * flow, (mdp.reward + factor * mdp.transition @ extra).ravel()
    ).reshape(20, 5)
    np.testing.assert_allclose(solve(mdp.gamma), mdp.evaluate(policy), atol=1e-10)
    assert np.abs(solve(1.0) - mdp.evaluate(policy)).max() > 0.1


def test_a_shrinking_bonus_leads_to_the_plain_optimum():
    gap = soft_mdp.shrinking_bonus(rounds=300)
    assert gap[-1] < 0.02 * gap[0]


@pytest.mark.parametrize("seed", range(4))
def test_kl_equals_the_negative_objective(seed):
    result = kl_trajectories.kl_objective(seed=seed, policies=8)
    np.testing.assert_allclose(result.drawn, result.maxinfo, atol=1e-10)
    assert result.drawn_minimum == pytest.approx(result.soft_optimum, abs=1e-10)
    assert result.drawn_minimum < result.drawn.min()
    assert np.ptp(result.maxinfo) > 0.1  # the policies do differ


def test_with_one_fixed_truth_the_bonus_changes_sign():
    result = kl_trajectories.kl_objective(policies=8)
    assert kl_trajectories.range_of_difference(result.fixed, result.maxinfo) > 0.1
    np.testing.assert_allclose(result.fixed, result.mismatch, atol=1e-10)
    assert result.fixed_minimum < result.fixed_at_maxinfo - 0.01


def test_only_additive_noise_makes_information_an_entropy():
    additive = kl_trajectories.kl_objective(policies=8)
    other = kl_trajectories.kl_objective(kl_trajectories.uncertain_problem(additive=False), policies=8)
    assert kl_trajectories.range_of_difference(additive.maxinfo, additive.joint_entropy) < 1e-10
    assert kl_trajectories.range_of_difference(other.maxinfo, other.joint_entropy) > 1e-3
    np.testing.assert_allclose(other.drawn, other.maxinfo, atol=1e-10)


def test_without_doubt_there_is_nothing_to_learn():
    problem = kl_trajectories.uncertain_problem()
    sure = replace(problem, likelihood=np.repeat(problem.likelihood[:1], 3, 0))
    np.testing.assert_allclose(sure.information, 0.0, atol=1e-12)
    result = kl_trajectories.kl_objective(sure, policies=4)
    np.testing.assert_allclose(result.fixed, result.drawn, atol=1e-10)


@pytest.mark.parametrize("figure", [pytest.param("soft-policy-iteration", marks=pytest.mark.slow), "kl-objective"])
def test_reproduce_writes_data_figure_and_verdicts(tmp_path, figure):
    theory.reproduce(figure, tmp_path / "out", scale=0.1)
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    assert all(set(v) == {"claim", "verdict", "numbers"} for v in verdicts)
    assert {v["verdict"] for v in verdicts} <= {"confirmed", "not shown", "contradicted", "not run"}
    names = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert names == {".csv", ".png", ".json", ".md"}
    assert f"maxinforl reproduce {figure} --scale 0.1" in (tmp_path / "out" / "README.md").read_text()


def test_bandit_verdicts_at_small_size(tmp_path, runs, request, monkeypatch):
    monkeypatch.setattr(bandit_figure, "resampled_slopes", partial(gp_bandit.resampled_slopes, resamples=60))
    kernel = request.node.callspec.params["runs"]
    verdicts = {v["claim"]: v["verdict"] for v in bandit_figure.bandit_verdicts(kernel, runs)}
    assert all(v == "confirmed" for claim, v in verdicts.items() if "sublinear" in claim or "linear (1" in claim)
    bandit_figure.write_bandit(tmp_path, {kernel: runs}, range(12))
    bandit_figure.plot_bandit({kernel: runs}, tmp_path / "figure.png")
    assert len((tmp_path / "regret.csv").read_text().splitlines()) == 1 + 8 * 12


def test_reproduce_refuses_unknown_figures(tmp_path):
    with pytest.raises(BadInput, match="unknown theory figure 'bandits': did you mean 'bandit'"):
        theory.reproduce("bandits", tmp_path)
    with pytest.raises(BadInput, match="scale 0 is not"):
        theory.reproduce("bandit", tmp_path, scale=0)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.3085), (1, 100, 0.00025, 0.0545), (5, 100, 0.0164, 0.1128), (4, 4, 0.3976, 1.0)],
)
def test_exact_intervals_of_a_share(hits, n, low, high):
    assert verdicts.binomial_interval(hits, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("failed", "word"),
    [([0] * 100, "confirmed"), ([0] * 10, "not shown"), ([0] * 97 + [1] * 3, "not shown"), ([1] * 5, "contradicted")],
)
def test_how_often_needs_enough_seeds(failed, word):
    assert verdicts.often("", np.array(failed), 0.05, "failed")["verdict"] == word
