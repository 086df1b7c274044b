"""Runs taken up where their checkpoints left them, from the command line or from Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maxinforl.agent import Agent, EnvLike, load, make_trainer, plain_spaces, read_spaces
from maxinforl.envs import check_name
from maxinforl.envs.record import StateRecorder
from maxinforl.errors import BadInput
from maxinforl.explore import Strategy
from maxinforl.files import inside
from maxinforl.settings import Settings
from maxinforl.training import checkpoint
from maxinforl.training.changes import outlined
from maxinforl.training.directory import read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.log import RunFiles
from maxinforl.training.loop import Trainer, check_arrays, check_memory
from maxinforl.training.run import Run
from maxinforl.training.store import Checkpoint, CheckpointStore

OWN = "your-own.md#your-own-environment"


@dataclass
class Saved:
    """Runs that train together, as their files say they are; `step` is None where there is no checkpoint yet."""

    settings: list[Settings]
    strategy: Strategy
    tables: list[dict[str, Any]]
    stores: list[CheckpointStore]
    checkpoints: list[Checkpoint]  # of the newest step that all have a good one of; empty once taken up

    def __post_init__(self):
        self.step = self.checkpoints[0].step if self.checkpoints else None
        self.logs = [checkpoint.part(c, checkpoint.LOGS) for c in self.checkpoints] or [{} for _ in self.stores]

    @property
    def finished(self) -> bool:
        return self.step is not None and self.step >= self.settings[0].steps


def saved_runs(directories: list[Path], custom: Iterable[type] = ()) -> Saved:
    """What is on disk of runs that train together."""
    found = [read_run(directory, custom) for directory in directories]
    seeds, strategy = [settings for settings, _, _ in found], found[0][1]
    first = seeds[0]
    if any((replace(s, seed=0), other) != (replace(first, seed=0), strategy) for s, other, _ in found):
        raise BadInput(f"the seeds in {directories[0].parent} have settings that differ, so they cannot train together")
    like = outlined(strategy, found[0][2], first)
    check_memory(first, first.steps, *read_spaces(found[0][2]["spaces"]), len(seeds), like)  # before any of it is taken
    keep = first.keep if len(seeds) == 1 else max(2, first.keep)  # the last step that all have must survive
    stores = [CheckpointStore(inside(directory, "checkpoints"), keep) for directory in directories]
    saved = Saved(seeds, strategy, [table for _, _, table in found], stores, checkpoint.newest(stores) or [])
    if saved.checkpoints and saved.tables[0].get("by_name", True):  # before an agent of that configuration is made
        for c in saved.checkpoints:
            check_arrays(checkpoint.part(c, "agent/"), like)
    return saved


def take_up(trainer: Trainer, saved: Saved) -> list[str]:
    """Puts a fresh trainer where the runs were; sentences about what is not as it was. The checkpoints are let go."""
    said = [sentence for c in saved.checkpoints for sentence in (*c.warnings, *c.drift)]
    for settings, c in zip(saved.settings, saved.checkpoints):
        said += checkpoint.changed_since(c, settings, saved.strategy)
    if saved.checkpoints:
        said += checkpoint.restore(trainer, saved.checkpoints)
        saved.checkpoints.clear()
    if planned := saved.tables[0].get("planned"):
        trainer.replan(int(planned))
    return list(dict.fromkeys(said))


def cut_back(
    directory: Path, settings: Settings, saved: Saved, index: int = 0
) -> tuple[StateRecorder | None, list[str]]:
    """A seed's files as they were at the step that it goes on from: the recorder of its states, if it has one, and
    sentences about logs that are not what they were."""
    step = saved.step
    said = RunFiles(directory).cut_back(step or -1, saved.logs[index])  # at step 0 it comes before the evaluation there
    states = inside(directory, "states.npz")
    if not settings.record_states:
        return None, said
    return (StateRecorder() if step is None or not states.exists() else StateRecorder.load(states, step)), said


def resume(
    directory: str | Path,
    *,
    env: EnvLike | None = None,
    eval_env: EnvLike | None = None,
    custom: Iterable[type] = (),
    progress: bool = False,
) -> Agent:
    """Takes a run to its end as if it had never stopped, and returns its agent.

    A run on an environment of your own needs that environment again: `resume("runs/x", env=MyEnv)`, and so does one
    whose environment is named `module:Name`, because that imports the module.
    """
    path = Path(directory)
    if not (path / "config.toml").exists():
        raise BadInput(f"{path} holds no run: give the directory that learn(out=...) or `train --out` named")
    with RunLock(path):
        saved = saved_runs([path], custom)
        [settings], [table] = saved.settings, saved.tables
        if table.get("together"):
            raise BadInput(f"{path} trains together with other seeds: use `maxinforl resume {path.parent}`")
        if env is None and not table.get("by_name", True):
            raise BadInput(f"{path} was trained on an environment of your own: pass it as resume(..., env=...)", OWN)
        if saved.finished:
            return load(path, env=env, custom=custom)
        if env is None:
            check_name(settings.env)
        agent = Agent(settings, saved.strategy, settings.env if env is None else env, eval_env)
        if plain_spaces(agent.observation_space, agent.action_space) != table["spaces"]:
            raise BadInput(f"the environment has other observations or actions than the one of {path}: pass that one")
        restored = bool(saved.checkpoints)
        agent.trainer = make_trainer(saved.strategy, [settings], agent.env, settings.steps, restored)  # type: ignore[arg-type]
        for sentence in take_up(agent.trainer, saved):
            warnings.warn(sentence, stacklevel=2)
        recorder, said = cut_back(path, settings, saved)
        for sentence in said:
            warnings.warn(sentence, stacklevel=2)
        run = Run(agent.trainer.members[0], agent._evaluator(settings), path, recorder=recorder, store=saved.stores[0])
        agent._drive(run, settings.steps, progress)
    return agent
