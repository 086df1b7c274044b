"""The tasks of a suite for agents of any library, evaluated as this library's own runs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from maxinforl import envs, files
from maxinforl.errors import BadInput
from maxinforl.experiments.read_runs import RunLogs, read_run_logs
from maxinforl.experiments.reproduce import load_figure
from maxinforl.experiments.suite import SuiteRun
from maxinforl.experiments.suite_runs import slug
from maxinforl.settings import Settings, env_options
from maxinforl.spaces import Spaces
from maxinforl.training.directory import versions
from maxinforl.training.evaluate import make_evaluator
from maxinforl.training.log import RunFiles

ASKED = ("eval_episodes", "eval_every", "action_cost", "action_repeat", "stop_at")  # settings that make a run another


class AnyAgent(Protocol):
    """What Stable-Baselines3's agents do, and this library's."""

    def learn(self, steps: int, /) -> Any: ...

    def predict(self, observation: np.ndarray, /, *, deterministic: bool) -> tuple[np.ndarray, Any]: ...


def benchmark(
    make_agent: Callable[[gym.Env, int], AnyAgent],
    name: str,
    out: str | Path,
    *,
    suite: str = "hard-exploration",
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = range(5),
) -> list[RunLogs]:
    """Trains agents of any library on the tasks of a suite and evaluates them on the suite's grid.

    Args:
        make_agent: makes an agent of an environment and a seed. Its `learn(n)` takes n steps and goes on where it was;
            its `predict(observations, deterministic=True)` takes a batch and returns (actions, anything).
        name: what reports call it.
        out: the runs go to OUT/NAME/TASK/seed-N; those that are there already are not run again.
        suite: a figure of `maxinforl list --figures` whose tasks have thresholds.
        tasks: names of tasks, all if empty.
        seeds: of the runs.

    Returns:
        The runs. `maxinforl report OUT results/hard-exploration` draws them beside this library's.

    Example:
        >>> import maxinforl
        >>> make_agent = lambda env, seed: maxinforl.make("sac", env, seed=seed, eval_episodes=0)
        >>> maxinforl.benchmark(make_agent, "mine", "runs/mine", tasks=["mountain car"])  # doctest: +SKIP
    """
    figure = load_figure(suite)
    if not figure.thresholds:
        raise BadInput(f"the tasks of {suite} have no thresholds: choose hard-exploration")
    chosen = replace(figure.suite, seeds=tuple(seeds)).restricted(["sac"], list(tasks))
    folder = Path(out) / slug(name)
    return [
        _run(make_agent, name, folder / slug(run.environment) / f"seed-{run.settings.seed}", run)
        for run in chosen.runs()
    ]


def _run(make_agent: Callable[[gym.Env, int], AnyAgent], name: str, directory: Path, run: SuiteRun) -> RunLogs:
    """One agent on one task, unless it was run before."""
    settings = run.resolved[0]
    table = {"algo": name, "env": settings.env, "seed": settings.seed, "steps": settings.steps}
    table |= {"settings": {k: v for k in ASKED if (v := getattr(settings, k)) is not None}}
    if not (directory / "config.toml").exists():
        if (directory / "eval.csv").exists():
            (directory / "eval.csv").unlink()  # of a run that was stopped: other libraries' agents are not resumed
        files.make_directory(directory)
        with closing(envs.make(settings.env, **env_options(settings))) as env:
            _train(make_agent(env, settings.seed), env, RunFiles(directory), settings)
        files.write_toml(directory / "config.toml", table | {"versions": versions()})
    found = read_run_logs(directory)
    if {key: found.config.get(key) for key in table} != table:
        raise BadInput(f"{directory} holds a run of another agent or with other settings: choose another out")
    return replace(found, algo=name, env=run.environment)


def _train(agent: AnyAgent, env: envs.AdaptedEnv, log: RunFiles, settings: Settings) -> None:
    """Learning and evaluation in turn, on the suite's grid, up to its last step or `stop_at`."""
    evaluator = make_evaluator(settings, settings.env, Spaces(env.observation_space, env.action_space))  # type: ignore[arg-type]
    assert evaluator is not None
    box: Any = env.action_space

    def act(obs: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], as evaluations take them."""
        action, _ = agent.predict(obs, deterministic=True)
        return np.asarray(2 * (action - box.low) / (box.high - box.low) - 1, np.float32).clip(-1, 1)

    every, step = settings.eval_every or settings.steps, 0
    with closing(evaluator):
        while True:
            found = evaluator(act, step // every)
            log.evaluation(step, step * (settings.action_repeat or 1), settings.seed, found)
            if step >= settings.steps or (settings.stop_at is not None and found.returns.mean() >= settings.stop_at):
                return
            agent.learn(min(every, settings.steps - step))
            step = min(step + every, settings.steps)
