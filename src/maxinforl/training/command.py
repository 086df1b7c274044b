"""What `train`, `resume` and `eval` do on the command line: open a run, watch it, and show how it went."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maxinforl import files
from maxinforl.agent import Agent, check_fit, compiles, env_options, load, make_trainer, plain_settings, read_spaces
from maxinforl.envs import EnvCaller, Watchdog, check_name, make_pool
from maxinforl.errors import BadInput, missing_extra
from maxinforl.experiments.rundir import noting, read_table
from maxinforl.files import inside
from maxinforl.settings import Settings, resolve, title
from maxinforl.training import changes
from maxinforl.training.directory import clear, holds_run, open_run, read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.log import Sink, TensorBoard, WeightsAndBiases
from maxinforl.training.loop import PREEMPTED, Member, Trainer, check_memory, replay_bytes, signals
from maxinforl.training.picture import curve_picture, phase_picture
from maxinforl.training.progress import Progress
from maxinforl.training.resume import OWN, Saved, cut_back, saved_runs, take_up
from maxinforl.training.run import Drive, Run

console = Console()
SHOWN = ("step", "env_step", "mean_return", "std_return", "mean_length")


def say(text: str | Text, style: str | None = None) -> None:
    """A line that is not broken where no terminal asks for it, with names as they are."""
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


def train(runs: list[tuple[Settings, Path]], out: Path, overwrite: bool) -> int:
    """All seeds in one program; nothing is written before all of it could be built."""
    settings, strategy = resolve(runs[0][0])
    first = Agent(settings, strategy, settings.env)
    check_fit(strategy, first)
    check_extras(settings)
    compiles(settings, settings.env)
    check_memory(settings, settings.steps, *first._spaces(), len(runs), first._outline())
    if overwrite and out.exists():
        clear(out)
    together = [s.seed for s, _ in runs] if len(runs) > 1 else []
    for settings, directory in runs:
        open_run(directory, *resolve(settings), first.observation_space, first.action_space, together=together)
    return carry_on([directory for _, directory in runs], settings.env)


def replay_of(given: dict[str, Any]) -> int:
    """Bytes of the replay that a run with these settings would take; its environment makes a step, as a check."""
    settings, strategy = resolve(Settings(**given))
    agent = Agent(settings, strategy, settings.env)
    check_fit(strategy, agent)
    pool = make_pool(settings.env, **env_options(settings))
    pool.reset()
    pool.step(np.zeros((1, *agent.action_space.shape), np.float32))
    pool.close()
    return replay_bytes(settings, settings.steps, agent.observation_space, agent.action_space)


def carry_on(directories: list[Path], env: str | None = None) -> int:
    """Takes runs that train together to their end; 75 when a signal or the clock stopped them.

    `env` is the name of their environment where the user gave it.
    """
    with ExitStack() as locks, signals(ends_process=True) as asked:
        for directory in directories:
            locks.enter_context(RunLock(directory))
        with files.running():
            if continue_runs(directories, asked, env):
                return 0
    whole = directories[0] if len(directories) == 1 else directories[0].parent
    step = min(map(changes.last_step, directories))
    where = f"at the checkpoint of step {step}" if step else "before the first checkpoint"
    say(f"stopped {where}: continue with `maxinforl resume {whole}`")
    return PREEMPTED


def describe(saved: Saved, directories: list[Path], observation: Box, action: Box) -> None:
    """What begins, with the memory that it is about to take."""
    s, seeds, alone = saved.settings[0], [own.seed for own in saved.settings], len(directories) == 1
    memory = replay_bytes(s, s.steps, observation, action, len(seeds)) / 1e6
    ensemble = f", {s.uncertainty} ensemble" if hasattr(saved.strategy, "intrinsic") else ""
    which = f"seed {s.seed}" if alone else f"seeds {', '.join(map(str, seeds))} in one program"
    where = directories[0] if alone else directories[0].parent
    rest = f", {which}: {s.steps} steps{ensemble}, replay {memory:.1f} MB → {where}"
    say(Text.assemble((title(s), "bold"), " on ", (s.env, "bold"), rest))


def check_extras(settings: Settings) -> None:
    """Refuses what an extra that is not installed would do, and films of nothing, before anything begins."""
    for name, module in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("video", "imageio_ffmpeg")):
        if getattr(settings, name) and find_spec(module) is None:
            raise missing_extra(name, f"--{name}")
    if settings.video and settings.eval_episodes == 0:
        raise BadInput("--video films evaluations: give --eval-episodes of at least 1")


def optional_sinks(settings: Settings, directory: Path) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.tensorboard:
        sinks.append(TensorBoard(directory))
    if settings.wandb:
        sinks.append(WeightsAndBiases(directory, plain_settings(settings)))
    return sinks


def follow(trainer: Trainer, runs: list[Run], directories: list[Path], asked: Callable[[], bool]) -> bool:
    """Trains to the end with a bar, then shows tables, curves and states; False when stopped before."""
    steps = trainer.settings.steps
    drive = Drive(trainer, runs, Progress(steps, trainer.step, console=console), asked)
    try:
        finished = drive.until(steps)
    finally:
        drive.close()
        trainer.close()
    if finished:
        for member, directory in zip(trainer.members, directories):
            show(member, directory)
    return finished


def show(member: Member, directory: Path) -> None:
    """A table of the evaluations, and pictures."""
    settings, problems = member.settings, []
    rows = []
    with noting(problems):
        columns = read_table(inside(directory, "eval.csv"), problems, SHOWN)
        rows = list(zip(*(columns[name] for name in SHOWN))) if columns else []
    for sentence in problems:
        say(sentence, "yellow")
    if member.window.skipped:
        say(f"{member.window.skipped:.0f} steps' updates were undone: they gave numbers that are not finite", "yellow")
    if rows:
        if member.trainer.alone:
            table = Table("step", "environment steps", "mean return", "± std", "mean length", box=None, pad_edge=False)
            for r in rows if len(rows) <= 12 else rows[:: len(rows) // 10]:
                table.add_row(f"{r[0]:.0f}", f"{r[1]:.0f}", f"{r[2]:.1f}", f"{r[3]:.1f}", f"{r[4]:.0f}")
            console.print(table)
        else:
            say(f"seed {settings.seed}: return {rows[-1][2]:.1f} ± {rows[-1][3]:.1f}")
        curve_picture(directory, title(settings), settings.env, np.array(rows)[:, [0, 2, 3]])
    if len(member.trainer.observation_space.shape) == 1:
        phase_picture(directory, settings.env, *member.visited())
    pictures = [p.name for p in (directory / "curve.png", directory / "phase.png") if p.exists()]
    say(f"results in {directory}: eval.csv, metrics.jsonl" + "".join(f", {name}" for name in pictures))


def resume(directory: Path, given: dict[str, Any], override: bool) -> int:
    """Continues every unfinished run of a directory, with settings changed where that was asked for and allowed."""
    if not holds_run(directory):
        raise BadInput(f"{directory} holds no run: give the directory that `train --out` named, with its config.toml")
    if (directory / "config.toml").exists():
        seeds = read_run(directory)[2].get("together")
        if seeds:
            raise BadInput(
                f"{directory} trains together with seeds {', '.join(map(str, seeds))}: "
                f"use `maxinforl resume {directory.parent}`"
            )
        changes.ask([directory], given, override)
        return carry_on([directory], given.get("env"))
    there = [inside(directory, path.name) for path in directory.glob("seed-*")]
    there.sort(key=lambda path: (len(path.name), path.name))
    changes.ask(there, given, override)
    together = {tuple(read_run(path)[2].get("together") or [path.name]): path for path in there}
    for seeds, path in together.items():
        group = [path] if seeds == (path.name,) else [inside(directory, f"seed-{seed}") for seed in seeds]
        if missing := [path for path in group if not holds_run(path)]:
            raise BadInput(f"{missing[0]} is missing, and the seeds of {directory} train together")
        if (code := carry_on(group, given.get("env"))) != 0:
            return code
    return 0


def continue_runs(directories: list[Path], asked: Callable[[], bool], env: str | None = None) -> bool:
    """From the newest step that every seed has a good checkpoint of, or from step 0; False when stopped early."""
    saved = saved_runs(directories)
    first = saved.settings[0]
    if not all(table.get("by_name", True) for table in saved.tables):
        raise BadInput(
            f"{directories[0]} was trained on an environment of your own, which no file holds: resume it from Python "
            f"with maxinforl.resume({str(directories[0])!r}, env=...)",
            OWN,
        )
    if saved.finished:
        whole = directories[0] if len(directories) == 1 else directories[0].parent
        say(f"{whole} is finished: {saved.step} of {first.steps} steps")
        return True
    check_name(first.env, env)
    describe(saved, directories, *read_spaces(saved.tables[0]["spaces"]))
    trainer = make_trainer(saved.strategy, saved.settings, first.env, first.steps, bool(saved.checkpoints))
    calling: list[EnvCaller] = [] if first.workers else [*trainer.pools]  # workers have their own time limit
    with Watchdog(first.env_timeout, calling):
        for sentence in take_up(trainer, saved):
            say(sentence, "yellow")
        runs = [prepare(member, directory, saved) for member, directory in zip(trainer.members, directories)]
        if not first.workers or first.video:
            calling += [run.evaluator for run in runs if run.evaluator is not None]
        return follow(trainer, runs, directories, asked)


def prepare(member: Member, directory: Path, saved: Saved) -> Run:
    """A seed's files, cut back to the step that it goes on from."""
    settings, begun = member.settings, (directory / "eval.csv").exists()
    step, store = saved.step, saved.stores[member.index]
    recorder, said = cut_back(directory, settings, saved, member.index)
    for sentence in said:
        say(sentence, "yellow")
    if step is not None:
        say(f"resuming {directory} at step {step} of {settings.steps}")
    elif begun:
        shared = "of a step that all seeds have one of" if store.steps() else "yet"
        say(f"{directory} has no checkpoint {shared}: starting again from step 0")
    if step is None:
        store.restart()
    evaluator = Agent(settings, member.trainer.strategy, settings.env)._evaluator(settings)
    return Run(member, evaluator, directory, optional_sinks(settings, directory), recorder, store)


def loaded(directory: Path, env: str | None) -> Agent:
    """The agent of a directory; `env` is the name of its environment where the user gave it."""
    agent = load(directory, env=env)
    if env not in (None, agent.settings.env):
        raise BadInput(f"{directory} was trained on {agent.settings.env} and not on {env}: leave --env out")
    return agent


def evaluate(directory: Path, episodes: int, env: str | None = None) -> int:
    """Deterministic episodes of a trained agent, printed."""
    agent = loaded(directory, env)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(str(message), "yellow")
        result = agent.evaluate(episodes)
    say(
        f"{title(agent.settings)} on {agent.settings.env}: return {result.returns.mean():.1f} "
        f"± {result.returns.std():.1f} over {episodes} episodes, mean length {result.lengths.mean():.0f}"
    )
    return 0
