"""MaxInfoRL as minimisation of a KL divergence between trajectory distributions, by enumerating a finite problem."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maxinforl.experiments import figures
from maxinforl.experiments.arrays import FloatArray, IntArray
from maxinforl.experiments.verdicts import Verdict, exact


@dataclass(frozen=True)
class UncertainProblem:
    """A finite-horizon problem whose dynamics are one of a few models, with a belief over which.

    An outcome is a next state and a reward level, numbered state * levels + level. Under model f it is
    f(s, a) + w, both coordinates taken modulo their size, so noise is additive and every outcome is possible.
    """

    likelihood: FloatArray  # [models, states, actions, outcomes]: p(outcome | s, a, f)
    belief: FloatArray  # [models]: p(f)
    start: FloatArray  # [states]
    pay: FloatArray  # [outcomes]: the reward in the outcome
    successor: IntArray  # [outcomes]: the state in the outcome
    alpha: float = 0.5
    horizon: int = 3

    @property
    def predictive(self) -> FloatArray:
        """p(outcome | s, a), the belief's mixture."""
        return np.einsum("f,fsao->sao", self.belief, self.likelihood)

    @property
    def information(self) -> FloatArray:
        """I(outcome; f | s, a): entropy of the mixture minus the mean entropy of its parts."""
        return entropy(self.predictive) - np.einsum("f,fsa->sa", self.belief, entropy(self.likelihood))


def entropy(p: FloatArray) -> FloatArray:
    """Entropy over the last axis (all probabilities positive)."""
    return -(p * np.log(p)).sum(-1)


def uncertain_problem(
    seed: int = 0, states: int = 3, actions: int = 2, levels: int = 2, models: int = 3, additive: bool = True
) -> UncertainProblem:
    """A random problem; unless `additive`, the noise depends on state and action, which breaks the entropy identity."""
    generator = np.random.default_rng(seed)
    outcomes = states * levels
    noise = np.broadcast_to(generator.dirichlet(np.ones(outcomes)), (states, actions, outcomes))
    if not additive:
        noise = generator.dirichlet(np.ones(outcomes), size=(states, actions))
    shift = generator.integers([states, levels], size=(models, states, actions, 2))
    state, level = np.divmod(np.arange(outcomes), levels)
    drawn = (state - shift[..., :1]) % states * levels + (level - shift[..., 1:]) % levels  # the w behind an outcome
    likelihood = np.take_along_axis(np.broadcast_to(noise, drawn.shape), drawn, -1)
    belief, start = generator.dirichlet(np.ones(models)), generator.dirichlet(np.ones(states))
    return UncertainProblem(likelihood, belief, start, generator.normal(size=levels)[level], state)


@dataclass(frozen=True)
class Divergence:
    """E over every trajectory of log p^pi(trajectory) - log p*(trajectory), for the two interpretations of p*."""

    drawn: float  # p* uses the dynamics that generated the trajectory, drawn from the belief
    fixed: float  # p* uses one given f*, whatever generated the trajectory; p* unnormalised


def divergence(problem: UncertainProblem, policy: FloatArray, true_model: int = 0) -> Divergence:
    """Enumerate every start, action, model and outcome under `policy` [horizon, states, actions]."""
    weight, state = problem.start, np.arange(len(problem.start))
    drawn, fixed = np.zeros((2, len(state)))
    likelihood = np.moveaxis(problem.likelihood, 0, 2)  # [states, actions, models, outcomes]
    predictive, truth = problem.predictive[:, :, None], likelihood[:, :, true_model, None]
    for pi in policy:
        step = pi[:, :, None, None] * problem.belief[:, None] * likelihood
        common = np.log(pi)[:, :, None, None] + np.log(predictive) - problem.pay / problem.alpha
        branch = [
            _branches(term, step.shape, state) for term in (step, common - np.log(likelihood), common - np.log(truth))
        ]
        weight = (weight[:, None] * branch[0]).ravel()
        drawn, fixed = (drawn[:, None] + branch[1]).ravel(), (fixed[:, None] + branch[2]).ravel()
        state = np.tile(problem.successor, len(weight) // len(problem.successor))
    return Divergence(float(weight @ drawn), float(weight @ fixed))


def _branches(term: FloatArray, shape: tuple[int, ...], state: IntArray) -> FloatArray:
    """A term [state, action, model, outcome] for every continuation of every trajectory so far."""
    return np.broadcast_to(term, shape).reshape(shape[0], -1)[state]


def objective(problem: UncertainProblem, policy: FloatArray, bonus: FloatArray) -> float:
    """E sum_t r - alpha log pi + alpha bonus(s, a), by backward induction."""
    value = np.zeros(len(problem.start))
    for pi in policy[::-1]:
        q = problem.predictive @ (problem.pay + value[problem.successor]) + problem.alpha * bonus
        value = (pi * (q - problem.alpha * np.log(pi))).sum(-1)
    return float(problem.start @ value)


def best_policy(problem: UncertainProblem, bonus: FloatArray) -> tuple[FloatArray, float]:
    """The policy that maximises `objective` for a bonus, and its value, by soft backward induction."""
    value, policy = np.zeros(len(problem.start)), []
    for _ in range(problem.horizon):
        q = problem.predictive @ (problem.pay + value[problem.successor]) + problem.alpha * bonus
        total = np.logaddexp.reduce(q / problem.alpha, axis=-1, keepdims=True)
        policy.append(np.exp(q / problem.alpha - total))
        value = problem.alpha * total[:, 0]
    return np.array(policy[::-1]), float(problem.start @ value)


@dataclass(frozen=True)
class KLObjective:
    """Divergence and objective of random policies, and of the optimal ones."""

    drawn: FloatArray  # [policies] divergence, dynamics drawn with the trajectory
    fixed: FloatArray  # [policies] divergence to one fixed f*
    maxinfo: FloatArray  # [policies] -(MaxInfoRL objective) / alpha
    joint_entropy: FloatArray  # [policies] the same with H(outcome | s, a) in place of the information gain
    mismatch: FloatArray  # [policies] -(objective) / alpha with bonus -KL(p(.|s,a) || p(.|s,a,f*))
    drawn_minimum: float  # divergence of the policy that maximises the MaxInfoRL objective
    soft_optimum: float  # -(its optimal value) / alpha, from backward induction
    fixed_minimum: float  # smallest divergence to the fixed f*
    fixed_at_maxinfo: float  # that divergence at the MaxInfoRL optimum


def range_of_difference(x: FloatArray, y: FloatArray) -> float:
    """max(x - y) - min(x - y): 0 if two functions of the policy differ by a constant."""
    return float(np.ptp(x - y))


def kl_objective(problem: UncertainProblem | None = None, policies: int = 20, seed: int = 0) -> KLObjective:
    """Compare the divergence of random policies, by enumeration, with objectives, by backward induction.

    Args:
      problem: by default `uncertain_problem(seed)`.
      policies: the number of random policies.
      seed: of the problem and the policies.

    Example:
      >>> result = kl_objective(policies=4)
      >>> range_of_difference(result.drawn, result.maxinfo) < 1e-10
      True
    """
    problem = uncertain_problem(seed) if problem is None else problem
    states, actions = problem.likelihood.shape[1:3]
    generator = np.random.default_rng([seed, 1])
    drawn = generator.dirichlet(np.ones(actions), size=(policies, problem.horizon, states)).clip(1e-9)
    random = drawn / drawn.sum(-1, keepdims=True)
    divergences = [divergence(problem, policy) for policy in random]
    truth = problem.likelihood[0]
    mismatch = -(problem.predictive * np.log(problem.predictive / truth)).sum(-1)
    column = lambda bonus: np.array([-objective(problem, policy, bonus) / problem.alpha for policy in random])
    best, value = best_policy(problem, problem.information)
    optimum = divergence(problem, best)
    return KLObjective(
        drawn=np.array([d.drawn for d in divergences]),
        fixed=np.array([d.fixed for d in divergences]),
        maxinfo=column(problem.information),
        joint_entropy=column(entropy(problem.predictive)),
        mismatch=column(mismatch),
        drawn_minimum=optimum.drawn,
        soft_optimum=-value / problem.alpha,
        fixed_minimum=divergence(problem, best_policy(problem, mismatch)[0]).fixed,
        fixed_at_maxinfo=optimum.fixed,
    )


# --- verdicts, files and plot ---------------------------------------------------------------------------------


def _kl_verdicts(additive: Sequence[KLObjective], other: Sequence[KLObjective]) -> list[Verdict]:
    drawn = max(range_of_difference(k.drawn, k.maxinfo) for k in additive)
    literal = max(range_of_difference(k.fixed, k.maxinfo) for k in additive)
    return [
        exact(
            "the divergence to the desired trajectory distribution is minus the MaxInfoRL objective over alpha plus "
            "a constant, when the dynamics are drawn together with the trajectory",
            drawn,
        ),
        exact(
            "its minimiser is the MaxInfoRL-optimal policy",
            max(max(abs(k.drawn_minimum - k.soft_optimum), k.drawn_minimum - k.drawn.min()) for k in additive),
        ),
        exact(
            "the same holds as printed, with one fixed f* in the desired distribution",
            literal,
            excess_at_maxinfo_optimum=max(k.fixed_at_maxinfo - k.fixed_minimum for k in additive),
        ),
        exact(
            "with one fixed f* the bonus is instead -KL(p(.|s,a) || p(.|s,a,f*))",
            max(range_of_difference(k.fixed, k.mismatch) for k in additive),
        ),
        exact(
            "with additive noise the information gain is the entropy of state and reward up to a constant",
            max(range_of_difference(k.maxinfo, k.joint_entropy) for k in additive),
            spread_with_other_noise=min(range_of_difference(k.maxinfo, k.joint_entropy) for k in other),
        ),
    ]


def reproduce_kl(out: Path, scale: float) -> list[Verdict]:
    seeds = range(max(5, round(20 * scale)))
    additive = [kl_objective(seed=seed) for seed in seeds]
    other = [kl_objective(uncertain_problem(seed, additive=False), seed=seed) for seed in seeds]
    fields = ["drawn", "fixed", "maxinfo", "joint_entropy", "mismatch"]
    cells = [(noise, s, k) for noise, ks in (("additive", additive), ("other", other)) for s, k in enumerate(ks)]
    rows = ((n, s, p, *values) for n, s, k in cells for p, values in enumerate(zip(*(getattr(k, f) for f in fields))))
    figures.write_csv(out / "policies.csv", ["noise", "problem", "policy", *fields], rows)
    _plot_kl(additive[0], out / "figure.png")
    return _kl_verdicts(additive, other)


@figures.styled
def _plot_kl(result: KLObjective, path: Path) -> None:
    figure, axes = figures.canvas(1, 2)
    titles = {"drawn": "dynamics drawn with the trajectory", "fixed": "one fixed f*"}
    for ax, (field, title) in zip(axes, titles.items()):
        ax.scatter(result.maxinfo, getattr(result, field), s=14, color=figures.colour(0))
        offset = np.mean(getattr(result, field) - result.maxinfo)
        line = np.array([result.maxinfo.min(), result.maxinfo.max()])
        ax.plot(line, line + offset, color="black", linestyle=":", linewidth=1, label="slope 1")
        ax.set(xlabel="−objective / α", ylabel="divergence", title=title)
        ax.legend()
    figures.save(figure, path)
