"""Soft policy iteration with an exploration bonus on a random finite MDP: the convergence theorem, measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from maxinforl.experiments import figures
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.verdicts import Verdict, exact, make_verdict


@dataclass(frozen=True)
class SoftMDP:
    """A finite discounted MDP with rewards for entropy (weight alpha1) and for a bonus I(s, a) (weight alpha2)."""

    reward: FloatArray  # [states, actions]
    transition: FloatArray  # [states, actions, states]
    bonus: FloatArray  # [states, actions]
    gamma: float = 0.95
    alpha1: float = 0.3
    alpha2: float = 0.7

    def value(self, policy: FloatArray, q: FloatArray) -> FloatArray:
        """V(s) = sum_a pi (Q - alpha1 log pi + alpha2 I)."""
        return (policy * (q - self.alpha1 * np.log(policy) + self.alpha2 * self.bonus)).sum(1)

    def backup(self, value: FloatArray) -> FloatArray:
        """Q = r + gamma P V."""
        return self.reward + self.gamma * self.transition @ value

    def evaluate(self, policy: FloatArray) -> FloatArray:
        """Q of the policy, by solving the linear system."""
        flow = np.einsum("sa,sat->st", policy, self.transition)
        gain = self.value(policy, self.reward)
        return self.backup(np.linalg.solve(np.eye(len(gain)) - self.gamma * flow, gain))

    def improve(self, q: FloatArray) -> FloatArray:
        """pi ∝ exp((Q + alpha2 I) / alpha1)."""
        logits = (q + self.alpha2 * self.bonus) / self.alpha1
        weight = np.exp(logits - logits.max(1, keepdims=True))
        return weight / weight.sum(1, keepdims=True)

    def optimal_value(self, q: FloatArray) -> FloatArray:
        """V(s) = alpha1 log sum_a exp((Q + alpha2 I) / alpha1)."""
        logits = (q + self.alpha2 * self.bonus) / self.alpha1
        peak = logits.max(1)
        return self.alpha1 * (peak + np.log(np.exp(logits - peak[:, None]).sum(1)))

    def optimum(self) -> FloatArray:
        """Q* by soft value iteration, independent of policy iteration."""
        q = np.zeros_like(self.reward)
        for _ in range(1 + int(np.log(1e-16) / np.log(self.gamma)) + 100):
            q = self.backup(self.optimal_value(q))
        return q


def random_mdp(seed: int = 0, states: int = 20, actions: int = 5, outputs: int = 3, **parameters: float) -> SoftMDP:
    """Random rewards and transitions; the bonus is sum_j log(1 + v_j / sigma^2) of random variances, at most 1."""
    generator = np.random.default_rng(seed)
    transition = generator.dirichlet(np.full(states, 0.1), size=(states, actions))  # a few likely successors
    bonus = np.log1p(generator.gamma(1.0, size=(states, actions, outputs)) / 0.1).sum(-1)
    reward = generator.uniform(size=(states, actions))
    return SoftMDP(reward, transition, bonus / bonus.max(), **parameters)


@dataclass(frozen=True)
class SoftPolicyIteration:
    """Measurements on one MDP, one field per statement of the theorem."""

    gap: FloatArray  # per iteration: sup |Q_k - Q*|
    improvement: FloatArray  # per iteration: smallest Q^new - Q^old over states and actions (>= 0)
    contraction: FloatArray  # per random pair: sup |T Q - T Q'| / sup |Q - Q'| (<= gamma), evaluation operator
    optimality_contraction: FloatArray  # the same for the soft optimality operator
    fixed_point_gap: float  # limit of policy iteration against value iteration
    dominance: float  # smallest Q* - Q^pi over random policies, states and actions (>= 0)
    reduction_gap: float  # alpha2 = 0 against textbook soft policy iteration
    gamma: float


def soft_policy_iteration(
    mdp: SoftMDP | None = None, iterations: int = 12, probes: int = 100, seed: int = 0
) -> SoftPolicyIteration:
    """Run policy iteration from a random policy and measure every statement of the convergence theorem.

    Args:
      mdp: the problem; by default `random_mdp(seed)`.
      iterations: of policy iteration.
      probes: random pairs of Q functions, and random policies, to test the inequalities on.
      seed: of the problem and the probes.

    Example:
      >>> soft_policy_iteration().fixed_point_gap < 1e-10
      True
    """
    mdp = random_mdp(seed) if mdp is None else mdp
    generator = np.random.default_rng([seed, 1])
    optimum = mdp.optimum()
    trace = policy_iterates(mdp, _random_policy(mdp, generator), iterations)
    evaluation, optimality = _contraction(mdp, generator, probes)
    others = [mdp.evaluate(_random_policy(mdp, generator)) for _ in range(probes)]
    return SoftPolicyIteration(
        gap=np.abs(trace - optimum).max((1, 2)),
        improvement=np.diff(trace, axis=0).min((1, 2)),
        contraction=evaluation,
        optimality_contraction=optimality,
        fixed_point_gap=float(np.abs(trace[-1] - optimum).max()),
        dominance=float((optimum - np.array(others)).min()),
        reduction_gap=_reduction_gap(mdp, iterations),
        gamma=mdp.gamma,
    )


def policy_iterates(mdp: SoftMDP, policy: FloatArray, iterations: int) -> FloatArray:
    """Q of the first policy and of each improved one, [iterations + 1, states, actions]."""
    trace = [mdp.evaluate(policy)]
    for _ in range(iterations):
        trace.append(mdp.evaluate(mdp.improve(trace[-1])))
    return np.array(trace)


def _random_policy(mdp: SoftMDP, generator: np.random.Generator) -> FloatArray:
    return generator.dirichlet(np.ones(mdp.reward.shape[1]), size=len(mdp.reward)).clip(1e-12)


def _contraction(mdp: SoftMDP, generator: np.random.Generator, probes: int) -> tuple[FloatArray, FloatArray]:
    ratios = np.empty((2, probes))
    for p in range(probes):
        policy, (q, other) = _random_policy(mdp, generator), generator.normal(scale=10, size=(2, *mdp.reward.shape))
        other = q + 1.0 + other * 10.0 ** -(p % 6)  # towards the worst case, a constant shift, whose ratio is gamma
        apart = np.abs(q - other).max()
        values = mdp.value(policy, q) - mdp.value(policy, other), mdp.optimal_value(q) - mdp.optimal_value(other)
        ratios[:, p] = [np.abs(mdp.gamma * mdp.transition @ v).max() / apart for v in values]
    return ratios[0], ratios[1]


def _reduction_gap(mdp: SoftMDP, iterations: int) -> float:
    """alpha2 = 0 against soft policy iteration on the entropy-augmented reward, implemented without a bonus."""
    plain = replace(mdp, alpha2=0.0)
    states, actions = mdp.reward.shape
    policy = np.full((states, actions), 1 / actions)
    ours = policy_iterates(plain, policy, iterations)[-1]
    for _ in range(iterations + 1):
        entropy = -(policy * np.log(policy)).sum(1)
        flow = np.einsum("sat,tb->satb", mdp.transition, policy).reshape(states * actions, -1)
        augmented = mdp.reward + mdp.gamma * mdp.alpha1 * mdp.transition @ entropy
        q = np.linalg.solve(np.eye(states * actions) - mdp.gamma * flow, augmented.ravel()).reshape(states, actions)
        policy = np.exp(q / mdp.alpha1 - np.logaddexp.reduce(q / mdp.alpha1, axis=1, keepdims=True))
    return float(np.abs(ours - q).max())


def shrinking_bonus(mdp: SoftMDP | None = None, rounds: int = 1000, scale: float = 10.0, seed: int = 0) -> FloatArray:
    """sup |Q_n - Q*(alpha2 = 0)| of policy iteration with a bonus I_n = log(1 + scale / visits) that shrinks."""
    mdp = random_mdp(seed) if mdp is None else mdp
    target = replace(mdp, alpha2=0.0).optimum()
    policy, visits = _random_policy(mdp, np.random.default_rng([seed, 2])), np.ones_like(mdp.reward)
    gap = np.empty(rounds)
    for n in range(rounds):
        current = replace(mdp, bonus=np.log1p(scale / visits))
        q = current.evaluate(policy)
        gap[n] = np.abs(q - target).max()
        visits = visits + visits.size * _occupancy(mdp, policy)
        policy = current.improve(q)
    return gap


def _occupancy(mdp: SoftMDP, policy: FloatArray) -> FloatArray:
    """Discounted visit frequency of every state and action from a uniform start."""
    flow = np.einsum("sa,sat->st", policy, mdp.transition)
    states = len(flow)
    start = np.full(states, (1 - mdp.gamma) / states)
    return np.linalg.solve(np.eye(states) - mdp.gamma * flow.T, start)[:, None] * policy


# --- verdicts, files and plot ---------------------------------------------------------------------------------


def _iteration_verdicts(results: Sequence[SoftPolicyIteration], shrinking: Sequence[FloatArray]) -> list[Verdict]:
    largest = lambda field: float(max(np.max(getattr(r, field)) for r in results))
    gamma = results[0].gamma
    contraction = max(largest("contraction"), largest("optimality_contraction"))
    drop = -min(float(r.improvement.min()) for r in results)
    left = max(float(gap[-1] / gap[0]) for gap in shrinking)
    converged = max(int(np.argmax(r.gap < 1e-8)) for r in results)
    return [
        exact("evaluation and optimality operators contract by gamma", contraction - gamma, largest_ratio=contraction),
        exact("every improvement step raises Q everywhere", drop),
        exact("policy iteration ends at the soft optimum", largest("fixed_point_gap"), iterations=converged),
        exact("Q* is at least Q of every policy", -min(r.dominance for r in results)),
        exact("alpha2 = 0 is ordinary soft policy iteration", largest("reduction_gap")),
        make_verdict(
            "as the information gain shrinks with visits, the iterates approach the alpha2 = 0 optimum "
            "(final gap under 2 % of the first)",
            left < 0.02,
            left >= 0.02,
            largest_remaining_fraction=left,
        ),
    ]


def reproduce_iteration(out: Path, scale: float) -> list[Verdict]:
    seeds = range(max(5, round(50 * scale)))
    results = [soft_policy_iteration(seed=seed) for seed in seeds]
    shrinking = [shrinking_bonus(seed=seed) for seed in list(seeds)[:5]]
    steps = range(len(results[0].gap))
    gaps = ((s, k, r.gap[k], r.improvement[k - 1] if k else "") for s, r in enumerate(results) for k in steps)
    figures.write_csv(out / "iterations.csv", ["seed", "iteration", "gap_to_optimum", "smallest_improvement"], gaps)
    pairs = ((s, *pair) for s, r in enumerate(results) for pair in zip(r.contraction, r.optimality_contraction))
    figures.write_csv(out / "contraction.csv", ["seed", "evaluation_ratio", "optimality_ratio"], pairs)
    kept = np.unique(np.geomspace(1, len(shrinking[0]), 60).astype(int))
    gap = ((s, n, g[n - 1]) for s, g in enumerate(shrinking) for n in kept)
    figures.write_csv(out / "shrinking_bonus.csv", ["seed", "round", "gap_to_alpha2_zero_optimum"], gap)
    _plot_iteration(results, shrinking, out / "figure.png")
    return _iteration_verdicts(results, shrinking)


@figures.styled
def _plot_iteration(results: Sequence[SoftPolicyIteration], shrinking: Sequence[FloatArray], path: Path) -> None:
    figure, (gap, ratio, shrink) = figures.canvas(1, 3)
    for result in results:
        gap.plot(np.maximum(result.gap, 1e-16), color=figures.colour(0), alpha=0.3, linewidth=1)
    gap.set(yscale="log", xlabel="iteration", title="$\\sup\\,|Q_k - Q^*|$")
    kinds = {"evaluation": "contraction", "optimality": "optimality_contraction"}
    ratio.hist([np.concatenate([getattr(r, f) for r in results]) for f in kinds.values()], 30, label=list(kinds))
    ratio.axvline(results[0].gamma, color="black", linestyle=":", label="γ")
    ratio.set(xlabel="sup |TQ − TQ'| / sup |Q − Q'|", title="contraction")
    ratio.legend()
    for series in shrinking:
        shrink.loglog(np.arange(1, len(series) + 1), series, color=figures.colour(1), alpha=0.6)
    shrink.set(xlabel="round", title="shrinking bonus: gap to α2 = 0")
    figures.save(figure, path)
