"""What `train`, `resume` and `eval` do on the command line: open a run, watch it, and show how it went."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from maxinforl.agent import Agent, check_fit, load, plain_settings
from maxinforl.envs import Watchdog
from maxinforl.envs.record import StateRecorder
from maxinforl.errors import BadInput, RunFailed, missing_extra
from maxinforl.files import inside
from maxinforl.settings import Settings, resolve, title
from maxinforl.training import changes, checkpoint
from maxinforl.training.directory import clear, holds_run, open_run, read_run
from maxinforl.training.lock import RunLock
from maxinforl.training.log import RunFiles, Sink, TensorBoard, WeightsAndBiases
from maxinforl.training.loop import check_memory
from maxinforl.training.picture import curve_picture, phase_picture
from maxinforl.training.progress import Progress
from maxinforl.training.run import Run, visited
from maxinforl.training.store import CheckpointStore

console = Console()


def say(text: str) -> None:
    """A line that is not broken where no terminal asks for it."""
    console.print(text, highlight=False, soft_wrap=True)


def train(runs: list[tuple[Settings, Path]], out: Path, overwrite: bool) -> int:
    """Every seed in turn; nothing is written before all of it could be built."""
    settings, strategy = resolve(runs[0][0])
    first = Agent(settings, strategy, settings.env)
    check_fit(strategy, first)
    check_extras(settings)
    check_memory(settings, settings.steps, first.observation_space, first.action_space)
    if overwrite and out.exists():
        clear(out)
    for settings, directory in runs:
        open_run(directory, *resolve(settings), first.observation_space, first.action_space)
    return carry_on([directory for _, directory in runs])


def carry_on(directories: list[Path]) -> int:
    """Takes every run to its end; 75 when a signal or the clock stopped one."""
    for directory in directories:
        with RunLock(directory):
            finished = continue_run(directory)
        if not finished:
            say(f"stopped: continue with `maxinforl resume {directory}`")
            return 75
    return 0


def describe(agent: Agent, directory: Path) -> None:
    s, trainer = agent.settings, agent.trainer
    assert trainer is not None
    memory = check_memory(s, s.steps, trainer.pool.observation_space, trainer.pool.action_space) / 1e6
    ensemble = f", {s.uncertainty} ensemble" if hasattr(agent.strategy, "intrinsic") else ""
    say(
        f"[bold]{title(s)}[/] on [bold]{s.env}[/], seed {s.seed}: {s.steps} steps{ensemble}, "
        f"replay {memory:.1f} MB → {directory}"
    )


def check_extras(settings: Settings) -> None:
    """Refuses what an extra that is not installed would do, before anything begins."""
    for name, module in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("video", "imageio_ffmpeg")):
        if getattr(settings, name) and find_spec(module) is None:
            raise missing_extra(name, f"--{name}")


def optional_sinks(settings: Settings, directory: Path) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.tensorboard:
        sinks.append(TensorBoard(directory))
    if settings.wandb:
        sinks.append(WeightsAndBiases(directory, plain_settings(settings)))
    return sinks


def follow(agent: Agent, directory: Path, recorder: StateRecorder | None, store: CheckpointStore | None = None) -> bool:
    """Trains to the end with a bar, then shows the table, the curve and the states; False when stopped before."""
    trainer = agent.trainer
    assert trainer is not None
    settings = agent.settings
    bar = Progress(settings.steps, trainer.step, console=console)
    run = Run(
        trainer, bar, agent._evaluator(settings), directory, {}, optional_sinks(settings, directory), recorder, store
    )
    try:
        with Watchdog(settings.env_timeout, [] if settings.workers else [trainer.pool]):
            outcome = run.until(settings.steps)
    except RunFailed as error:
        raise RunFailed(f"{error} (what was learned until the last checkpoint is kept in {directory})") from error
    finally:
        run.close()
        trainer.pool.close()
    if outcome.finished:
        show(agent, directory)
    return outcome.finished


def show(agent: Agent, directory: Path) -> None:
    """A table of the evaluations, and pictures."""
    settings, trainer = agent.settings, agent.trainer
    assert trainer is not None
    rows = [line.split(",") for line in (directory / "eval.csv").read_text().split()[1:]]
    if rows:
        table = Table("step", "environment steps", "mean return", "± std", "mean length", box=None, pad_edge=False)
        for r in rows if len(rows) <= 12 else rows[:: len(rows) // 10]:
            table.add_row(r[0], r[1], f"{float(r[3]):.1f}", f"{float(r[4]):.1f}", f"{float(r[7]):.0f}")
        console.print(table)
        curve_picture(directory, title(settings), settings.env)
    if len(trainer.pool.observation_space.shape) == 1:
        order, states = visited(trainer)
        phase_picture(directory / "phase.png", settings.env, order, states)
    pictures = [p.name for p in (directory / "curve.png", directory / "phase.png") if p.exists()]
    say(f"results in {directory}: eval.csv, metrics.jsonl" + "".join(f", {name}" for name in pictures))


def resume(directory: Path, given: dict[str, Any], override: bool) -> int:
    """Continues every unfinished run of a directory, with settings changed where that was asked for and allowed."""
    if not holds_run(directory):
        raise BadInput(f"{directory} holds no run: there is no config.toml in it")
    runs = [directory] if (directory / "config.toml").exists() else sorted(directory.glob("seed-*"))
    changes.ask(runs, given, override)
    return carry_on(runs)


def continue_run(directory: Path) -> bool:
    """From the newest good checkpoint, or from step 0 where there is none; False when stopped before the end."""
    settings, strategy, table = read_run(directory)
    if not table.get("by_name", True):
        raise BadInput(f"{directory} was trained on an environment of your own: resume it from Python")
    agent = Agent(settings, strategy, settings.env)
    agent.total_steps = settings.steps
    store = CheckpointStore(inside(directory, "checkpoints"), settings.keep)
    saved = store.load() if store.steps() else None
    if saved is not None and saved.step >= settings.steps:
        say(f"{directory} is finished: {saved.step} of {settings.steps} steps")
        return True
    trainer = agent._trainer(settings.steps)
    describe(agent, directory)
    begun, log = (directory / "eval.csv").exists(), RunFiles(directory)
    recorder = StateRecorder() if settings.record_states else None
    if saved is None and begun:
        log.cut_back(-1)
        say(f"{directory} has no checkpoint yet: starting again from step 0")
    if saved is not None:
        for sentence in (*saved.warnings, *saved.drift, checkpoint.restore(trainer, saved)):
            if sentence:
                say(f"[yellow]{sentence}[/]")
        trainer.replan(table.get("planned"))
        log.cut_back(saved.step)
        if recorder is not None and (directory / "states.npz").exists():
            recorder = StateRecorder.load(directory / "states.npz", saved.step)
        say(f"resuming {directory} at step {saved.step} of {settings.steps}")
    return follow(agent, directory, recorder, store)


def evaluate(directory: Path, episodes: int) -> int:
    """Deterministic episodes of a trained agent, printed."""
    agent = load(directory)
    result = agent.evaluate(episodes)
    say(
        f"{title(agent.settings)} on {agent.settings.env}: return {result.returns.mean():.1f} "
        f"± {result.returns.std():.1f} over {episodes} episodes, mean length {result.lengths.mean():.0f}"
    )
    return 0
