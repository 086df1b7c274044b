"""Callbacks: what happens at a step, a log line, an evaluation or a checkpoint of a run.

A callback is an object with any of

    on_step(run)                    after every agent step (in the compiled loop: after every dispatch)
    on_log(run, metrics)            before a log line is written; entries added to `metrics` reach every sink
    on_evaluation(run, evaluation)  after an evaluation, with `returns` and `lengths` of its episodes
    on_checkpoint(run)              once a checkpoint was copied; its files are written in the background

or a plain function, which is `on_log`. Where several seeds train together each is called for every seed. A callback
that returns False ends the run cleanly, with a checkpoint; one that raises ends it as failed, with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl import files
from maxinforl.envs.wrapper import rescale
from maxinforl.errors import BadInput, RunFailed, one_line
from maxinforl.saved import FILE, write_agent
from maxinforl.settings import Settings
from maxinforl.training.evaluate import Evaluation
from maxinforl.training.nonfinite import NotFinite
from maxinforl.training.trainer import SeedView

BEST, EARLIER = "best", "best/earlier"
HOOKS = ("on_step", "on_log", "on_evaluation", "on_checkpoint")


@dataclass
class RunView:
    """What a callback sees of a run: one seed of it."""

    view: SeedView
    directory: Path | None
    recorded: dict[str, float] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Agent steps made so far."""
        return self.view.step

    @property
    def env_step(self) -> int:
        """Environment steps: agent steps times the action repeat."""
        return self.view.env_step

    @property
    def settings(self) -> Settings:
        return self.view.settings

    @property
    def seed(self) -> int:
        return self.view.settings.seed

    def record(self, name: str, value: float) -> None:
        """Adds a metric to the next log line; where none follows, because the run ends, it has a line of its own."""
        self.recorded[name] = float(value)

    def predict(self, observations: Any) -> np.ndarray:
        """Deterministic actions for a batch of observations, as `Agent.predict`; waits for the updates under way."""
        spaces = self.view.trainer.spaces
        batch, single = spaces.batch(observations, self.view.settings)
        actions = rescale(spaces.action)(np.array(self.view.evaluation(batch)))
        return actions[0] if single else actions


class Callbacks:
    """The callbacks of a run, by what they listen to."""

    def __init__(self, given: Any = ()):
        listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        self.hooks: dict[str, list[tuple[str, Callable]]] = {hook: [] for hook in HOOKS}
        for callback in listed:
            self.add(callback)
        self.stopped_by = ""

    def add_first(self, callback: Any) -> None:
        """Adds a callback before all others, so that one of theirs that raises cannot leave it out."""
        own = Callbacks(callback)
        self.hooks = {hook: [*own.hooks[hook], *self.hooks[hook]] for hook in HOOKS}

    def add(self, callback: Any) -> None:
        name = getattr(callback, "__name__", type(callback).__name__)
        found = {hook: getattr(callback, hook) for hook in HOOKS if hasattr(callback, hook)}
        if not found and callable(callback):
            found = {"on_log": callback}
        if not found or not all(map(callable, found.values())):
            raise BadInput(
                f"{name} is no callback: give a function of (run, metrics), or an object with {', '.join(HOOKS[:-1])} "
                f"or {HOOKS[-1]}"
            )
        for hook, function in found.items():
            self.hooks[hook].append((name, function))

    def __call__(self, hook: str, run: RunView, *details: Any) -> None:
        """Calls all that listen; remembers who returned False."""
        for name, function in self.hooks[hook]:
            try:
                answer = function(run, *details)
                if isinstance(answer, (bool, np.bool_)) and not answer:
                    self.stopped_by = name
            except NotFinite:  # of the training, which the callback only looked at
                raise
            except (Exception, SystemExit) as error:
                raise RunFailed(f"callback {name} raised {one_line(error)} at step {run.step}") from error


class StopAt:
    """Ends a run once every seed had an evaluation whose mean return is at least `threshold`."""

    def __init__(self, threshold: float, seeds: Sequence[int], reached: Sequence[int] = ()):
        self.threshold, self.waiting = threshold, set(seeds) - set(reached)

    def on_evaluation(self, run: RunView, evaluation: Evaluation) -> bool:
        if evaluation.returns.mean() >= self.threshold:
            self.waiting.discard(run.seed)
        return bool(self.waiting)


class TellUnused:
    """Says once that imagined rows have no weight, where too many transitions terminate."""

    def __init__(self, most: float, say: Callable[[str], None]):
        self.most, self.say, self.said = most, say, False

    def on_log(self, run: RunView, metrics: dict[str, float]) -> None:
        share = metrics.get("model/terminated", 0.0)
        if share > self.most and not self.said:
            self.said = True
            self.say(
                f"{share:.1%} of the transitions terminate, and the ensemble does not predict terminations: while they "
                f"are more than {self.most:.1%}, the rows of --model-share have no weight"
            )


class KeepBest:
    """Keeps the agent of the best evaluation in `best/agent.safetensors` of a run directory.

    Those that were best before lie in `best/earlier`, by their step, for as long as a checkpoint leads back to them.
    """

    def __init__(self, env: str | None, checkpoints: Callable[[RunView], Sequence[int]]):
        self.env, self.checkpoints = env, checkpoints
        self.best: dict[int, tuple[int, float]] = {}  # by seed: step and mean return

    def on_evaluation(self, run: RunView, evaluation: Evaluation) -> None:
        assert run.directory is not None
        mean, held = float(evaluation.returns.mean()), self.best.get(run.seed) or read_best(run.directory)
        if held is not None and mean <= held[1]:
            self.best[run.seed] = held
            return
        path = files.inside(run.directory, f"{BEST}/{FILE}")
        files.make_directory(files.inside(run.directory, EARLIER))
        if held is not None:
            copy(path, earlier(run.directory, held[0]))  # so that there is always a best one
        trainer, facts = run.view.trainer, {"best": {"step": run.step, "mean_return": mean}}
        agent, clock = run.view.agent, trainer.state.clock
        write_agent(path, agent, clock, trainer.strategy, run.settings, trainer.spaces, self.env, **facts)
        self.best[run.seed] = run.step, mean

    def on_checkpoint(self, run: RunView) -> None:
        """Removes those that no checkpoint leads back to."""
        assert run.directory is not None
        held, before = self.best.get(run.seed), earlier_steps(run.directory)
        known: list[int] = [*before, *([held[0]] if held else [])]
        needed = {max((s for s in known if s <= step), default=-1) for step in [run.step, *self.checkpoints(run)]}
        for step in before:
            if step not in needed:
                files.remove(earlier(run.directory, step))


def earlier(directory: Path, step: int) -> Path:
    return files.inside(directory, f"{EARLIER}/{step}.safetensors")


def earlier_steps(directory: Path) -> list[int]:
    """Steps of the agents that were best before, the oldest first."""
    folder = files.inside(directory, EARLIER)
    found = [path.stem for path in folder.glob("*.safetensors")] if folder.is_dir() else []
    return sorted(int(stem) for stem in found if stem.isdecimal())


def copy(source: Path, target: Path) -> None:
    """A second copy of a file, whole or not at all."""
    with files.reading(source):
        data = source.read_bytes()
    files.write_atomic(target, data)


def read_best(directory: Path) -> tuple[int, float] | None:
    """Step and mean return of the agent in a run's `best`; None where there is none that is whole."""
    path = files.inside(directory, f"{BEST}/{FILE}")
    if not path.exists():
        return None
    with suppress(BadInput):
        match files.load_arrays(path)[1].get("best"):
            case {"step": int(step), "mean_return": float(mean)}:
                return step, mean
    return None


def roll_back_best(directory: Path, step: int) -> None:
    """Puts back the agent that was best at the step that a run goes on from; -1: at its beginning."""
    held, before = read_best(directory), earlier_steps(directory)
    path = files.inside(directory, f"{BEST}/{FILE}")
    if held is None or held[0] > step:
        usable = [s for s in before if s <= step]
        if usable:
            copy(earlier(directory, usable[-1]), path)
        elif path.exists():
            files.remove(path)
    for late in (s for s in before if s > step):
        files.remove(earlier(directory, late))
