"""The epsilon-greedy Gaussian-process bandit of the regret theorem: problems, rules of play and bounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from maxinforl.errors import BadInput, unknown
from maxinforl.experiments.arrays import FloatArray, IntArray

# --- problem and posterior ------------------------------------------------------------------------------------

NOISE = 0.1  # standard deviation of the observation noise


@dataclass(frozen=True)
class BanditProblem:
    """One objective per seed on a finite set of arms; `root @ root.T` is the kernel matrix."""

    objective: FloatArray  # [seeds, arms]
    root: FloatArray  # [seeds, arms, rank]

    @property
    def norm(self) -> FloatArray:
        """B = |J|_k per seed: the norm of the coefficients of J in the columns of the root."""
        norms = [float(np.linalg.norm(np.linalg.lstsq(r, j)[0])) for r, j in zip(self.root, self.objective)]
        return np.array(norms)


def rbf_problem(seeds: Sequence[int], arms: int = 100, lengthscale: float = 0.1, centres: int = 15) -> BanditProblem:
    """Random sums of RBF bumps on a grid of [0, 1], rescaled to range 1 and centred."""
    x = np.linspace(0.0, 1.0, arms)
    kernel = lambda z: np.exp(-((x[:, None] - z) ** 2) / (2 * lengthscale**2))
    generators = [np.random.default_rng([seed, 0]) for seed in seeds]
    bumps = [g.normal(size=centres) @ kernel(g.uniform(size=centres)).T for g in generators]
    objective = np.array([(j - j.mean()) / np.ptp(j) for j in bumps])
    value, vector = np.linalg.eigh(kernel(x))
    kept = value > 1e-10 * value[-1]  # the rest is rounding error: the prior is smooth
    root = vector[:, kept] * np.sqrt(value[kept])
    return BanditProblem(objective, np.repeat(root[None], len(seeds), 0))


def linear_problem(seeds: Sequence[int], arms: int = 100, dimension: int = 5) -> BanditProblem:
    """Random directions among unit arms with the kernel x.z, rescaled to range 1."""
    generators = [np.random.default_rng([seed, 0]) for seed in seeds]
    draws = np.array([g.normal(size=(arms + 1, dimension)) for g in generators])
    unit = draws[:, :-1] / np.linalg.norm(draws[:, :-1], axis=-1, keepdims=True)
    objective = np.einsum("sad,sd->sa", unit, draws[:, -1])
    return BanditProblem(objective / np.ptp(objective, axis=1, keepdims=True), unit)


PROBLEMS: dict[str, Callable[..., BanditProblem]] = {"rbf": rbf_problem, "linear": linear_problem}


class Posterior:
    """Gaussian-process posterior on the arms, one per seed, kept as mean and covariance root.

    With C = A A^T, observing arm i with noise variance n is mu += C_i (y - mu_i) / d and C -= C_i C_i^T / d for
    d = C_ii + n. The same step on the root, A -= C_i a^T / (d + sqrt(d n)) with a = A_i, costs no more than arms
    times rank (at most arms^2), cannot lose positive semi-definiteness, and makes Thompson samples free.
    """

    def __init__(self, root: FloatArray, noise: float):
        self.root, self.noise_variance = root.copy(), noise**2
        self.mean = np.zeros(root.shape[:2])

    @property
    def variance(self) -> FloatArray:
        return np.einsum("sar,sar->sa", self.root, self.root)

    def observe(self, arm: IntArray, y: FloatArray) -> None:
        seed = np.arange(len(arm))
        a = self.root[seed, arm]
        column = np.einsum("sar,sr->sa", self.root, a)
        d = column[seed, arm] + self.noise_variance
        self.mean += column * ((y - self.mean[seed, arm]) / d)[:, None]
        self.root -= column[:, :, None] * (a / (d + np.sqrt(d * self.noise_variance))[:, None])[:, None, :]


# --- rules of play --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How an arm is chosen: by `explore` with probability t^(2a-1) (never if a is None), else by `exploit`."""

    exploit: str
    explore: str = ""
    a: float | None = None

    def probability(self, t: FloatArray) -> FloatArray:
        return np.zeros_like(t) if self.a is None else t ** (2 * self.a - 1)


RULES = {
    "eps-maxinfo a=0.30": Rule("mean", "uncertainty", 0.30),
    "eps-maxinfo a=1/3": Rule("mean", "uncertainty", 1 / 3),
    "eps-maxinfo a=0.40": Rule("mean", "uncertainty", 0.40),
    "eps-uniform a=1/3": Rule("mean", "uniform", 1 / 3),
    "greedy": Rule("mean"),
    "uncertainty": Rule("uncertainty"),
    "gp-ucb": Rule("ucb"),
    "thompson": Rule("thompson"),
}


@dataclass(frozen=True)
class BanditRun:
    """One rule on every seed: all arrays are [seeds, rounds], after each round."""

    regret: FloatArray  # cumulative
    explorations: FloatArray  # E_t
    max_variance: FloatArray  # max over arms of sigma_t^2
    information: FloatArray  # 1/2 sum log(1 + sigma^2 / noise variance) of the arms played: at most Gamma_t
    miscalibration: FloatArray  # max over arms of |mu_t - J| / sigma_t
    norm: FloatArray  # [seeds]: B


class _Chooser:
    """Choice of arms, with one random stream per seed: results of a seed do not depend on the others."""

    def __init__(self, seeds: Sequence[int], rounds: int, arms: int):
        generators = [np.random.default_rng([seed, 1]) for seed in seeds]
        self.noise = np.array([g.normal(size=rounds) for g in generators])
        self.coin = np.array([g.uniform(size=rounds) for g in generators])
        self.uniform = np.array([g.integers(arms, size=rounds) for g in generators])
        self.generators = generators

    def choose(self, how: str, posterior: Posterior, variance: FloatArray, t: int) -> IntArray:
        match how:
            case "mean":
                return posterior.mean.argmax(1)
            case "uncertainty":
                return variance.argmax(1)
            case "ucb":
                return (posterior.mean + 2 * np.sqrt(variance)).argmax(1)
            case "uniform":
                return self.uniform[:, t]
            case "thompson":
                z = np.array([g.normal(size=posterior.root.shape[-1]) for g in self.generators])
                return (posterior.mean + np.einsum("sar,sr->sa", posterior.root, z)).argmax(1)
        raise unknown("choice", how, ("mean", "uncertainty", "ucb", "uniform", "thompson"))


def play(rule: Rule, problem: BanditProblem, seeds: Sequence[int], rounds: int, noise: float) -> BanditRun:
    """Play one rule for `rounds` rounds on every seed at once."""
    chooser = _Chooser(seeds, rounds, problem.objective.shape[1])
    posterior, row = Posterior(problem.root, noise), np.arange(len(seeds))
    explore = chooser.coin < rule.probability(np.arange(1.0, rounds + 1))
    value, played, peak, miss = np.empty((4, len(seeds), rounds))
    variance = posterior.variance
    for t in range(rounds):
        arm = chooser.choose(rule.exploit, posterior, variance, t)
        if explore[:, t].any():
            arm = np.where(explore[:, t], chooser.choose(rule.explore, posterior, variance, t), arm)
        value[:, t], played[:, t] = problem.objective[row, arm], variance[row, arm]
        posterior.observe(arm, value[:, t] + noise * chooser.noise[:, t])
        variance = posterior.variance
        peak[:, t] = variance.max(1)
        miss[:, t] = (np.abs(posterior.mean - problem.objective) / np.sqrt(variance)).max(1)
    regret = np.cumsum(problem.objective.max(1, keepdims=True) - value, axis=1)
    information = np.cumsum(np.log1p(played / noise**2), axis=1) / 2
    return BanditRun(regret, np.cumsum(explore, 1, float), peak, information, miss, problem.norm)


def bandit(
    kernel: str = "rbf",
    rules: dict[str, Rule] | None = None,
    seeds: int | Iterable[int] = 20,
    rounds: int = 1000,
    arms: int = 100,
    noise: float = NOISE,
) -> dict[str, BanditRun]:
    """Play the epsilon-greedy GP bandit of the regret theorem and its baselines on the same problems and noise.

    Args:
      kernel: a key of `PROBLEMS`.
      rules: rules of play by name; by default `RULES`.
      seeds: a number of seeds, or the seeds themselves; each is a problem of its own.
      rounds: plays per seed.
      arms: size of the finite set of arms.
      noise: standard deviation of the observation noise.

    Returns:
      The run of every rule, by name.

    Example:
      >>> bandit(seeds=2, rounds=10)["greedy"].regret.shape
      (2, 10)
    """
    if kernel not in PROBLEMS:
        raise unknown("kernel", kernel, PROBLEMS)
    rules = RULES if rules is None else rules
    for name, rule in rules.items():
        if rule.a is not None and not 0 < rule.a <= 0.5:
            raise BadInput(f"rule '{name}' has a = {rule.a:g}: choose a in (0, 1/2], the theorem needs (1/4, 1/2)")
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    seeds = list(seeds)
    if not seeds or rounds < 1 or arms < 2 or noise <= 0:
        raise BadInput("the bandit needs at least one seed, one round, two arms and a positive noise")
    problem = PROBLEMS[kernel](seeds, arms)
    return {name: play(rule, problem, seeds, rounds, noise) for name, rule in rules.items()}


# --- what the theorem and its lemmas say ----------------------------------------------------------------------


def slope(regret: FloatArray, since: float = 0.25) -> float:
    """Exponent of the mean regret: least squares of log R on log t over the last rounds, from `since` of them on."""
    mean = regret.mean(0)
    t = np.arange(1, len(mean) + 1)
    late = t >= since * len(mean)
    return float(np.polyfit(np.log(t[late]), np.log(mean[late]), 1)[0])


def resampled_slopes(regret: FloatArray, resamples: int = 500, seed: int = 0) -> FloatArray:
    """The slope of bootstrap samples of seeds; with one `seed`, samples of different rules stay paired."""
    generator = np.random.default_rng(seed)
    return np.array([slope(regret[generator.integers(len(regret), size=len(regret))]) for _ in range(resamples)])


def bound_exponent(a: float) -> float:
    """R_T = O(J_max T^2a + Gamma_T T^(1-a)): the larger exponent, logarithms aside."""
    return max(2 * a, 1 - a)


def explorations(a: float, rounds: int, seed: int) -> FloatArray:
    """E_t, the number of explorations up to t, without a bandit: the lemma needs many rounds but no rewards."""
    t = np.arange(1.0, rounds + 1)
    return np.cumsum(np.random.default_rng([seed, 2]).uniform(size=rounds) < t ** (2 * a - 1), dtype=float)


def exploration_bound(a: float, rounds: int, delta: float = 0.05) -> FloatArray:
    """The explicit lower bound on E_t that holds for all t with probability 1 - delta (log 2/delta: see docs)."""
    t = np.arange(1.0, rounds + 1)
    deviation = 2.5 * np.sqrt(t * (np.log(np.log(np.e * t)) + np.log(2 / delta)))
    return np.maximum(np.cumsum(t ** (2 * a - 1)) - deviation, 1.0)


def variance_ratio(run: BanditRun, noise: float = NOISE) -> FloatArray:
    """max sigma_t^2 E_t / (C gamma_t) with C = 2 / log(1 + 1/noise^2): at most 1, since gamma_t <= Gamma_t."""
    # sigma^2 <= C/2 log(1 + sigma^2/noise^2) for sigma^2 <= k(x, x) = 1; the information actually gathered stands
    # in for the maximum information gain, which cannot be computed and could only loosen the check.
    return run.max_variance * run.explorations * np.log1p(noise**-2) / (2 * run.information)


def confidence_width(run: BanditRun, delta: float = 0.05, factor: float = 1.0) -> FloatArray:
    """beta_t = B + sqrt(2 (gamma_t + 1 + log 1/delta)), for a posterior regularised by the noise variance.

    The paper prints the root with the noise's standard deviation before it (`factor`), which is too narrow here.
    """
    return run.norm[:, None] + factor * np.sqrt(2 * (run.information + 1 + np.log(1 / delta)))


def regret_bound(run: BanditRun) -> FloatArray:
    """The theorem's bound with the proof's constants: J_max E_t + sum_s 2 beta_s max sigma_s, J_max = 1."""
    width = 2 * confidence_width(run) * np.sqrt(run.max_variance)
    before = np.concatenate([np.ones((len(width), 1)), width[:, :-1]], axis=1)  # round t uses what t - 1 left behind
    return run.explorations + np.cumsum(before, axis=1)
