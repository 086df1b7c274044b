"""What `train`, `resume` and `eval` do on the command line: open a run, watch it, and show how it went."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from maxinforl import files
from maxinforl.agent import Agent, load
from maxinforl.envs import check_name, make_pool
from maxinforl.errors import BadInput, RunFailed, plain
from maxinforl.experiments.log_files import collect_problems, read_table
from maxinforl.settings import Settings, env_options, resolve, title
from maxinforl.spaces import read_spaces
from maxinforl.system.signals import PREEMPTED, signals
from maxinforl.training.compiled import runs_compiled
from maxinforl.training.directory import clear, complete_seeds, holds_run, last_step, open_run, read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.overrides import apply_overrides
from maxinforl.training.pictures import curve_picture, phase_picture
from maxinforl.training.progress import Progress
from maxinforl.training.session import OWN_ENVIRONMENT, Saved, Session, check_outputs, read_saved
from maxinforl.training.trainer import SeedView, check_memory, replay_bytes


class TerminalConsole(Console):
    """A console that outlives its reader: after `train | head -1` a run goes on to its end without output."""

    def on_broken_pipe(self) -> None:
        if not self.quiet:
            print("maxinforl: nobody reads the output any more: the run goes on without it", file=sys.stderr)
        self.quiet = True
        with suppress(OSError, ValueError):  # what is still buffered goes nowhere, also at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = TerminalConsole()
COLUMNS = ("step", "env_step", "mean_return", "std_return", "mean_length")


def say(text: str | Text, style: str | None = None) -> None:
    """A line that is not broken where no terminal asks for it, with names as they are but for control characters."""
    text = plain(text, keep="\n") if isinstance(text, str) else text
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


def warn(sentence: str) -> None:
    say(sentence, "yellow")


def train(runs: list[tuple[Settings, Path]], out: Path, overwrite: bool) -> int:
    """All seeds in one program; nothing is written before all of it could be built."""
    settings, strategy = resolve(runs[0][0])
    first = Agent(settings, strategy, settings.env)
    first.check()
    check_outputs(settings, out)
    runs_compiled(settings, settings.env)
    check_memory(settings, settings.steps, first.spaces, len(runs), first.shapes())
    if settings.env_arg:
        try_out(settings, first)
    if overwrite and out.exists():
        clear(out)
    together = [s.seed for s, _ in runs] if len(runs) > 1 else []
    for settings, directory in runs:
        open_run(directory, *resolve(settings), first.spaces, together=together, prior=first.prior_digest)
    return carry_on([directory for _, directory in runs], settings.env)


def try_out(settings: Settings, agent: Agent) -> None:
    """One step of an environment of its own, so that arguments it cannot work with are found before anything is
    written."""
    pool = None
    try:
        pool = make_pool(settings.env, **env_options(settings))
        pool.reset()
        pool.step(np.zeros((1, *agent.action_space.shape), np.float32))
    except RunFailed as error:
        raise BadInput(str(error)) from error
    finally:
        if pool is not None:
            pool.close()


def replay_of(given: dict[str, Any]) -> int:
    """Bytes of the replay that a run with these settings would take; its environment makes a step, as a check."""
    settings, strategy = resolve(Settings(**given))
    agent = Agent(settings, strategy, settings.env)
    agent.check()
    try_out(settings, agent)
    return replay_bytes(settings, settings.steps, agent.spaces)


def carry_on(directories: list[Path], env: str | None = None) -> int:
    """Trains runs that train together to their end; 75 when a signal or the clock stopped them.

    `env` is the name of their environment where the user gave it.
    """
    with ExitStack() as locks, signals(ends_process=True) as stop_requested:
        for directory in directories:
            locks.enter_context(RunLock(directory))
        with files.running():
            if continue_runs(directories, stop_requested, env):
                return 0
    whole = directories[0] if len(directories) == 1 else directories[0].parent
    step = min(map(last_step, directories))
    where = f"at the checkpoint of step {step}" if step else "before the first checkpoint"
    say(f"stopped {where}: continue with `maxinforl resume {whole}`")
    return PREEMPTED


def continue_runs(directories: list[Path], stop_requested: Callable[[], bool], env: str | None = None) -> bool:
    """From the newest step that every seed has a good checkpoint of, or from step 0; False when stopped early."""
    saved = read_saved(directories)
    settings = saved.settings
    if not saved.by_name:
        raise BadInput(
            f"{directories[0]} was trained on an environment of your own, which no file holds: resume it from Python "
            f"with maxinforl.resume({str(directories[0])!r}, env=...)",
            OWN_ENVIRONMENT,
        )
    if saved.finished:
        whole = directories[0] if len(directories) == 1 else directories[0].parent
        say(f"{whole} is finished: {saved.step} of {settings.steps} steps{reason(settings, saved.step)}")
        return True
    check_name(settings.env, env)
    describe(saved)
    progress = Progress(settings.steps, saved.step or 0, console=console)
    with Session.restored(saved, warn, stop_requested=stop_requested, progress=progress) as session:
        for directory in directories if saved.step is not None else []:
            say(f"resuming {directory} at step {saved.step} of {settings.steps}")
        try:
            finished = session.train()
        finally:
            session.trainer.close()
    if finished:
        for seed, directory in zip(session.trainer.seeds, directories):
            show(seed, directory)
    return finished


def reason(settings: Settings, step: int | None) -> str:
    """Why a run is finished before its last step."""
    early = settings.stop_at is not None and (step or 0) < settings.steps
    return f", it reached --stop-at {settings.stop_at:g}" if early else ""


def describe(saved: Saved) -> None:
    """What begins, with the memory that it is about to take."""
    s, seeds, alone = saved.settings, [own.seed for own in saved.per_seed_settings], len(saved.directories) == 1
    memory = replay_bytes(s, s.steps, read_spaces(saved.tables[0]["spaces"]), len(seeds)) / 1e6
    ensemble = f", {s.uncertainty} ensemble" if hasattr(saved.strategy, "intrinsic") else ""
    which = f"seed {s.seed}" if alone else f"seeds {', '.join(map(str, seeds))} in one program"
    where = saved.directories[0] if alone else saved.directories[0].parent
    prior = f", {s.prior_share:.0%} of every batch from {s.prior_data}" if s.prior_data and s.prior_share else ""
    prior += f", {s.model_share:.0%} of every critic batch imagined" if s.model_share else ""
    rest = f", {which}: {s.steps} steps{ensemble}, replay {memory:.1f} MB{prior} → {where}"
    say(Text.assemble((plain(title(s)), "bold"), " on ", (plain(s.env), "bold"), plain(rest)))


def show(seed: SeedView, directory: Path) -> None:
    """A table of the evaluations, and pictures."""
    settings, problems = seed.settings, []
    rows = []
    with collect_problems(problems):
        columns = read_table(files.inside(directory, "eval.csv"), problems, COLUMNS)
        rows = list(zip(*(columns[name] for name in COLUMNS))) if columns else []
    for sentence in problems:
        warn(sentence)
    if seed.window.skipped:
        warn(f"{seed.window.skipped:.0f} steps' updates were undone: they gave numbers that are not finite")
    if rows:
        if seed.trainer.alone:
            table = Table("step", "environment steps", "mean return", "± std", "mean length", box=None, pad_edge=False)
            for r in rows if len(rows) <= 12 else rows[:: len(rows) // 10]:
                table.add_row(f"{r[0]:.0f}", f"{r[1]:.0f}", f"{r[2]:.1f}", f"{r[3]:.1f}", f"{r[4]:.0f}")
            console.print(table)
        else:
            say(f"seed {settings.seed}: return {rows[-1][2]:.1f} ± {rows[-1][3]:.1f}")
        curve_picture(directory, title(settings), settings.env, np.array(rows)[:, [0, 2, 3]])
    if len(seed.trainer.spaces.observation.shape) == 1:
        phase_picture(directory, settings.env, *seed.visited())
    pictures = [p.name for p in (directory / "curve.png", directory / "phase.png") if p.exists()]
    best = [f"best/ (the agent of the best evaluation{best_of(rows)})"] if (directory / "best").exists() else []
    say(f"results in {directory}: " + ", ".join(["eval.csv", "metrics.jsonl", *pictures, *best]))


def best_of(rows: list[tuple]) -> str:
    return f", {max(r[2] for r in rows):.1f}" if rows else ""


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
        apply_overrides([directory], given, override)
        return carry_on([directory], given.get("env"))
    complete_seeds(directory)
    there = [files.inside(directory, path.parent.name) for path in directory.glob("seed-*/config.toml")]
    there.sort(key=lambda path: (len(path.name), path.name))
    apply_overrides(there, given, override)
    together = {tuple(read_run(path)[2].get("together") or [path.name]): path for path in there}
    for seeds, path in together.items():
        group = [path] if seeds == (path.name,) else [files.inside(directory, f"seed-{seed}") for seed in seeds]
        if missing := [path for path in group if not holds_run(path)]:
            raise BadInput(f"{missing[0]} is missing, and the seeds of {directory} train together")
        if (code := carry_on(group, given.get("env"))) != 0:
            return code
    return 0


def loaded(directory: Path, env: str | None) -> Agent:
    """The agent of a directory; `env` is the name of its environment where the user gave it."""
    agent = load(directory)
    if env not in (None, agent.settings.env):
        raise BadInput(f"{directory} was trained on {agent.settings.env} and not on {env}: leave --env out")
    if env is not None:
        agent.set_env(env)
    return agent


def evaluate(directory: Path, episodes: int, env: str | None = None, save_episodes: str | None = None) -> int:
    """Deterministic episodes of a trained agent, printed, and written to a file where one is named."""
    agent = loaded(directory, env)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        result = agent.evaluate(episodes, save_episodes=save_episodes)
    say(
        f"{title(agent.settings)} on {agent.settings.env}: return {result.returns.mean():.1f} "
        f"± {result.returns.std():.1f} over {episodes} episodes, mean length {result.lengths.mean():.0f}"
    )
    if save_episodes is not None:
        say(f"wrote {save_episodes}")
    return 0
