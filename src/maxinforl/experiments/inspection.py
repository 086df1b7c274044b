"""`maxinforl inspect`: what a run did, whether its exploration works, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl import config
from maxinforl.errors import BadInput
from maxinforl.experiments.arrays import FloatArray
from maxinforl.experiments.calibration import TOP_SHARE, Calibration, read_calibration
from maxinforl.experiments.formatting import format_number as fmt
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs, read_run_logs
from maxinforl.intrinsic.model_rows import ModelRows
from maxinforl.settings import Settings, resolve
from maxinforl.training.directory import holds_run
from maxinforl.training.directory import read_run as read_config
from maxinforl.training.store import CheckpointStore

BARS = "▁▂▃▄▅▆▇█"
MAX_LISTED = 6  # dimensions that are listed
IDENTITY = {"algo", "base", "explore", "intrinsic", "env", "seed", "steps", "set"}  # shown in the header


@dataclass(frozen=True)
class Findings:
    """A run, the calibration of its newest checkpoint (or why there is none), and how it differs from the preset."""

    run: RunLogs
    differences: list[str]
    calibration: Calibration | str
    problems: list[str]
    rows: ModelRows | None = None  # that the ensemble imagines
    updates: float = 0.0  # of the critics, up to the last log line


def inspect(path: Path) -> str:
    """Describe a run: settings, returns, exploration, calibration of the ensemble, and warnings.

    Args:
      path: a run directory (one seed).

    Returns:
      The text that `maxinforl inspect` prints.
    """
    if holds_run(path) and not (path / "config.toml").exists():
        raise BadInput(f"{path} holds several seeds: name one of them, such as {sorted(path.glob('seed-*'))[0]}")
    if not holds_run(path):
        raise BadInput(f"{path} holds no run: there is no config.toml in it")
    problems: list[str] = []
    run = read_run_logs(path, problems)
    found = Findings(run, differences(path), calibration_of(path), problems, *imagination_of(path, run))
    sections = [header(found), *return_curve(run), *exploration(run), *imagined_rows(run), *normalisers(path)]
    sections += [*uncertain_regions(found.calibration), *calibration_table(found.calibration)]
    advice = list(warnings(found))
    return "\n".join([*sections, "", "warnings" if advice else "no warnings", *(f"  ! {line}" for line in advice)])


def calibration_of(path: Path) -> Calibration | str:
    """The calibration of the newest checkpoint, or why there is none."""
    try:
        return read_calibration(path)
    except BadInput as reason:
        return str(reason)


def imagination_of(path: Path, run: RunLogs) -> tuple[ModelRows | None, float]:
    """The settings of the rows that the run's ensemble imagines, and how many updates it has made."""
    settings, strategy, _ = read_config(path)
    last = max((float(s.step[-1]) for s in run.metrics.values() if len(s.step)), default=0.0)
    updates = (last - (settings.learning_starts or 0)) * (settings.update_ratio or 1.0)
    return getattr(getattr(strategy, "intrinsic", None), "model_rows", None), updates


# --- configuration -------------------------------------------------------------------------------------------------


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    """Entries of a nested table by dotted path."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name, part in tree.items() for k, v in flatten(part, f"{path}.{name}" if path else name).items()}


def differences(path: Path) -> list[str]:
    """Settings in which the run differs from the preset of its algorithm and environment."""
    settings, strategy, _ = read_config(path)
    asked = {
        name: getattr(settings, name) for name in ("algo", "base", "explore", "intrinsic", "env", "preset", "steps")
    }
    if asked["algo"]:
        asked |= {"base": None, "explore": None, "intrinsic": None}
    usual, agent = resolve(Settings(**asked))
    mine = {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name not in IDENTITY}
    mine |= flatten(config.to_plain(strategy))
    theirs = {f.name: getattr(usual, f.name) for f in fields(Settings) if f.name not in IDENTITY}
    theirs |= flatten(config.to_plain(agent))
    names = [n for n in {**theirs, **mine} if mine.get(n) != theirs.get(n)]
    return [f"{name} = {mine.get(name)} (preset: {theirs.get(name)})" for name in names]


def header(found: Findings) -> str:
    run = found.run
    done = int(max((s.step[-1] for s in (*run.metrics.values(), *run.evaluation.values()) if len(s.step)), default=0))
    lines = [f"{run.algo} on {run.env}, seed {run.seed}: {done} of {run.steps} steps", "", "against the preset"]
    lines += [f"  {line}" for line in found.differences] or ["  nothing differs"]
    return "\n".join(lines)


def normalisers(path: Path) -> list[str]:
    """What the networks' observations and rewards are divided by in the newest checkpoint, where they are."""
    try:
        state = CheckpointStore(path / "checkpoints").load(rows=False).state
    except BadInput:
        return []
    own = lambda name: next((array for key, array in state.items() if key.endswith(f"/observed/{name}")), None)
    mean, var, count = (own(f"observations/{part}") for part in ("mean", "var", "count"))
    spread, peak = own("returns/moments/var"), own("returns/peak")
    lines = []
    if mean is not None and var is not None and count is not None:
        std = np.sqrt(var + 1e-8)
        lines.append(
            f"  observations, {count:.0f} of them: means from {fmt(mean.min())} to {fmt(mean.max())}, deviations from "
            f"{fmt(std.min())} to {fmt(std.max())}"
        )
    if spread is not None and peak is not None:
        lines.append(f"  returns: deviation {fmt(float(np.sqrt(spread)))}, largest {fmt(float(peak))}")
    return ["", "normalisers", *lines] if lines else []


# --- the files of a run --------------------------------------------------------------------------------------------


def sparkline(values: FloatArray, width: int = 48) -> str:
    """A curve of block characters, scaled from minimum to maximum; averaged to at most `width` of them.

    >>> sparkline(np.array([0.0, 1.0, 2.0, 7.0]))
    '▁▂▃█'
    """
    groups = np.array_split(values, width) if len(values) > width else [np.array([v]) for v in values]
    means = np.array([g.mean() for g in groups])
    low, span = means.min(), np.ptp(means)
    return "".join(BARS[int(7 * (m - low) / span + 0.5)] if span else BARS[0] for m in means)


def return_curve(run: RunLogs) -> list[str]:
    returns = run.returns
    if returns is None or not len(returns.value):
        return ["", "return", "  no evaluation was written: train with --eval-episodes above 0"]
    best = int(np.argmax(returns.value))
    text = f"first {fmt(returns.value[0])}, best {fmt(returns.value[best])} at step {returns.step[best]:.0f}"
    return ["", "return", f"  {sparkline(returns.value)}  {text}, last {fmt(returns.value[-1])}"]


def late_mean(series: Series) -> float:
    """Mean over the last quarter of the logged values."""
    return float(series.value[-max(1, len(series.value) // 4) :].mean())


def relative_gap(run: RunLogs) -> float | None:
    """The policy's information gain minus that of the target policy, relative to the latter."""
    gain, target = (run.metrics.get(f"explore/info_gain{end}") for end in ("", "_target"))
    if gain is None or target is None:
        return None
    return (late_mean(gain) - late_mean(target)) / max(abs(late_mean(target)), 1e-12)


def exploration(run: RunLogs) -> list[str]:
    """Exploration metrics, and whether α2 holds the information gain at its target."""
    lines = ["", "exploration"]
    named = ("info_gain", "intrinsic_reward", "alpha2", "intrinsic_weight", "model_error", "recent_error")
    for name in named:
        if (series := run.metrics.get(f"explore/{name}")) is not None:
            lines.append(f"  {name:17s} {sparkline(series.value, 32):32s}  now {fmt(late_mean(series))}")
    gap = relative_gap(run)
    if gap is not None:
        side = "above" if gap > 0 else "below"
        verdict = "α2 tracks its target" if abs(gap) < 0.1 else f"α2 {'falls' if gap > 0 else 'rises'} to close it"
        lines.append(f"  the policy's gain is {abs(gap):.1%} {side} the target policy's: {verdict}")
    return lines if len(lines) > 2 else [*lines, "  no directed exploration was logged: the algorithm has none"]


def imagined_rows(run: RunLogs) -> list[str]:
    """How many of the rows that the ensemble imagines counted, and what the gates saw."""
    named = ("used", "disagreement", "state_error", "reward_error", "terminated", "recent_error_of_mean")
    found = {name: series for name in named if (series := run.metrics.get(f"model/{name}")) is not None}
    rows = [f"  {name:20s} {sparkline(s.value, 32):32s}  now {fmt(late_mean(s))}" for name, s in found.items()]
    return ["", "imagined rows of the critics' batches", *rows] if rows else []


# --- the checkpoint ------------------------------------------------------------------------------------------------


def uncertain_regions(known: Calibration | str) -> list[str]:
    """Where in observation space and in the replay the intrinsic reward is high."""
    lines = ["", "where the model is uncertain now"]
    if isinstance(known, str):
        return [*lines, f"  not available: {known}"]
    high, gain = known.high, known.gain
    lines += [
        f"  intrinsic reward of {len(gain)} replayed transitions: median {fmt(float(np.median(gain)))}, "
        f"top {TOP_SHARE:.0%} above {fmt(float(gain[high].min()))}",
        f"  the top {TOP_SHARE:.0%} lie at {known.recency[high].mean():.0%} of the replay's age on average "
        "(100% is newest)",
    ]
    scale = np.maximum(known.obs.std(0), 1e-9)
    shift = (known.obs[high].mean(0) - known.obs.mean(0)) / scale
    for i in np.argsort(-np.abs(shift), kind="stable")[:MAX_LISTED]:
        low, top = np.quantile(known.obs[high, i], [0.1, 0.9])
        lines.append(
            f"  observation {i:<3d} from {fmt(low)} to {fmt(top)} there, mean {fmt(known.obs[:, i].mean())} "
            f"overall ({shift[i]:+.1f} standard deviations)"
        )
    return lines


def calibration_table(known: Calibration | str) -> list[str]:
    """Whether the members disagree where their predictions are wrong."""
    if isinstance(known, str):
        return []
    lines = ["", "calibration of the ensemble (normalised outputs, replayed transitions)"]
    lines.append(f"  rank correlation of disagreement and error: {known.correlation:.2f}")
    lines.append("  quarter  disagreement  error")
    return lines + [f"  {i + 1:<8d} {fmt(s):>12s}  {fmt(e)}" for i, (s, e) in enumerate(known.bins())]


# --- advice --------------------------------------------------------------------------------------------------------


def warnings(found: Findings) -> Iterator[str]:
    """Problems of the run, each with what to do about it."""
    yield from found.problems
    yield from curve_warnings(found.run)
    yield from exploration_warnings(found.run)
    if found.rows is not None and (used := found.run.metrics.get("model/used")) is not None and late_mean(used) < 0.5:
        why = why_unused(found.run, found.rows, found.updates)
        yield f"{late_mean(used):.0%} of the imagined rows counted lately: {why}"
    if isinstance(found.calibration, Calibration):
        yield from model_warnings(found.calibration)


def curve_warnings(run: RunLogs) -> Iterator[str]:
    returns = run.returns
    if returns is None or len(returns.value) < 3:
        return
    value, span = returns.value, float(np.ptp(returns.value))
    best = int(np.argmax(value))
    if min(value[best] - value[0], value[best] - late_mean(returns)) > 0.3 * span:
        yield (
            f"returns fell after step {returns.step[best]:.0f}, from {fmt(value[best])} to {fmt(late_mean(returns))}: "
            "compare other seeds, then lower --set base.lr; checkpoints from before may still be kept (--keep)"
        )
    elif span <= 1e-3 * max(1.0, float(np.abs(value).max())) or late_mean(returns) <= value[0] + 0.02 * span:
        plain = not any(name.startswith("explore/info") for name in run.metrics)
        what = "try maxinfo-sac, which explores by information gain" if plain else "train longer, or check the reward"
        yield f"the return has not risen since the start: {what}"


def exploration_warnings(run: RunLogs) -> Iterator[str]:
    gain, weight, skipped = (run.metrics.get(n) for n in ("explore/info_gain", "explore/alpha2", "train/skipped"))
    if gain is not None and len(gain.value) >= 4:
        if late_mean(gain) < 0.1 * float(gain.value.max()) and gain.value.min() >= 0:  # a logarithm has no tenth
            yield "information gain is below a tenth of its peak: the model has learned the region the policy visits"
        elif np.ptp(gain.value[len(gain.value) // 2 :]) < 0.02 * abs(late_mean(gain)):
            yield "information gain is flat: the model learns nothing more, so try --uncertainty paper"
    if weight is not None and len(weight.value) and not 1e-6 < weight.value[-1] < 1e6:
        yield f"alpha2 is {weight.value[-1]:.1e}, at its bound: hold it with make(..., weight=Fixed(1.0))"
    gap = relative_gap(run)
    if gap is not None and abs(gap) > 0.25:
        yield f"the policy's information gain is {gap:+.0%} off its target: raise --set weight.lr or train longer"
    if skipped is not None and late_mean(skipped) > 0:
        share = f"{late_mean(skipped):.1%}"
        yield f"{share} of late updates were not finite and skipped: lower --set base.lr, scale the reward"


def why_unused(run: RunLogs, rows: ModelRows, updates: float) -> str:
    """The first of the gates that holds imagined rows back, and what to do about it."""
    seen = {name: late_mean(run.metrics[f"model/{name}"]) for name in ("terminated", "state_error", "reward_error")}
    if seen["terminated"] > rows.most_terminated:
        return (
            f"{seen['terminated']:.1%} of the transitions terminate, which it does not predict: leave --model-share out"
        )
    if updates < rows.start:
        return f"they begin after {rows.start} updates: train longer, or lower --set intrinsic.model_rows.start"
    for name in ("state", "reward"):
        if (error := seen[f"{name}_error"]) > rows.most_error:
            return (
                f"the ensemble's squared error of the {name} is {fmt(error)} where predicting the mean has 1: train "
                "longer, try --uncertainty paper, or leave --model-share out"
            )
    return "its members disagree about them: try --uncertainty paper, or leave --model-share out"


def model_warnings(known: Calibration) -> Iterator[str]:
    if known.correlation < 0.2:
        yield (
            f"disagreement hardly predicts the error (rank correlation {known.correlation:.2f}): the bonus is mostly "
            "noise, so try --uncertainty paper or more members (--set intrinsic.members=10)"
        )
    if known.error.mean() > 5 * known.disagreement.mean():
        ratio = known.error.mean() / max(known.disagreement.mean(), 1e-12)
        yield (
            f"the ensemble is overconfident (error {ratio:.0f} times its disagreement): on a noisy task try "
            "--set intrinsic.aleatoric=true"
        )
