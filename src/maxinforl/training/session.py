"""One owner of a run: training, and everything that happens on a grid of steps around it.

`Agent.learn`, `maxinforl.resume` and the command line all train through a `Session`. On the command line a fresh run is
a resume from nothing: its configuration is written, then it is restored from whatever checkpoints there are.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from maxinforl.envs import EnvCaller, Watchdog
from maxinforl.envs.record import StateRecorder
from maxinforl.errors import BadInput, RunFailed, missing_extra
from maxinforl.explore import Strategy
from maxinforl.files import inside
from maxinforl.prior import SEE as PRIOR_DATA
from maxinforl.prior import Prior
from maxinforl.settings import Settings, flag, known_as, settings_table
from maxinforl.spaces import read_spaces
from maxinforl.system.signals import signals
from maxinforl.training import checkpoint
from maxinforl.training.arrays import agent_shapes, check_arrays
from maxinforl.training.callbacks import Callbacks, KeepBest, RunView, StopAt, TellUnused, roll_back_best
from maxinforl.training.compiled import make_trainer
from maxinforl.training.directory import ended_at, lacks_evaluation, reached, read_run
from maxinforl.training.evaluate import Evaluation, EvaluationStopped, Evaluator, Video, make_evaluator
from maxinforl.training.log import RunFiles, Sink, TensorBoard, WeightsAndBiases
from maxinforl.training.nonfinite import NotFinite
from maxinforl.training.progress import Progress
from maxinforl.training.store import Checkpoint, CheckpointStore
from maxinforl.training.trainer import SeedView, Trainer, check_memory, short_replay

OWN_ENVIRONMENT = "your-own.md#your-own-environment"
Report = Callable[[str], None]


# ------------------------------------------------------------ what is on disk


@dataclass
class Saved:
    """Runs that train together, as their files say they are; `step` is None where there is no checkpoint yet."""

    directories: list[Path]
    per_seed_settings: list[Settings]
    strategy: Strategy
    tables: list[dict[str, Any]]
    stores: list[CheckpointStore]
    checkpoints: list[Checkpoint]  # of the newest step that all have a good one of; empty once restored

    def __post_init__(self):
        self.settings = self.per_seed_settings[0]
        self.step = self.checkpoints[0].step if self.checkpoints else None
        self.logs = [checkpoint.part(c, checkpoint.LOGS) for c in self.checkpoints] or [{} for _ in self.stores]

    @property
    def finished(self) -> bool:
        return self.step is not None and all(ended_at(d, self.settings, self.step) for d in self.directories)

    @property
    def by_name(self) -> bool:
        """Whether the environment can be made from its name."""
        return all(table.get("by_name", True) for table in self.tables)


def read_saved(directories: Sequence[Path], custom: Iterable[type] = ()) -> Saved:
    """What is on disk of runs that train together.

    Args:
        directories: one for each seed.
        custom: classes of the user's own that their configurations name.
    """
    found = [read_run(directory, custom) for directory in directories]
    per_seed, strategy, tables = [s for s, _, _ in found], found[0][1], [table for _, _, table in found]
    first, spaces = per_seed[0], read_spaces(tables[0]["spaces"])
    if any((replace(s, seed=0), other) != (replace(first, seed=0), strategy) for s, other, _ in found):
        raise BadInput(f"the seeds in {directories[0].parent} have settings that differ, so they cannot train together")
    like = agent_shapes(strategy, spaces.spec(first))
    check_memory(first, first.steps, spaces, len(per_seed), like)  # before any of it is taken
    keep = first.keep if len(per_seed) == 1 else max(2, first.keep)  # the last step that all have must survive
    stores = [CheckpointStore(inside(directory, "checkpoints"), keep) for directory in directories]
    saved = Saved([*directories], per_seed, strategy, tables, stores, checkpoint.newest(stores) or [])
    if not saved.checkpoints and any(table.get("continues") for table in tables):
        raise BadInput(
            f"{directories[0]} goes on with an agent that was trained before, and ended before its first checkpoint: "
            "load that agent again and let it learn in a new directory"
        )
    if saved.checkpoints and saved.by_name:  # before an agent of that configuration is made
        for c in saved.checkpoints:
            check_arrays(checkpoint.part(c, "agent/"), like)
    return saved


def restore(trainer: Trainer, saved: Saved) -> list[str]:
    """Puts a fresh trainer where the runs were and lets the checkpoints go; sentences about what is not as it was."""
    changed = [sentence for c in saved.checkpoints for sentence in (*c.warnings, *c.drift)]
    for settings, c in zip(saved.per_seed_settings, saved.checkpoints):
        changed += checkpoint.changed_since(c, settings, saved.strategy)
    if saved.checkpoints:
        changed += checkpoint.restore(trainer, saved.checkpoints)
        saved.checkpoints.clear()
    if planned := saved.tables[0].get("planned"):
        trainer.replan(int(planned))
    return list(dict.fromkeys(changed))


def check_prior(trainer: Trainer, saved: Saved) -> None:
    """Refuses prior data that is not what the runs began with."""
    hexes = [bytes(c.state[checkpoint.PRIOR]).hex() for c in saved.checkpoints if checkpoint.PRIOR in c.state]
    known = {*(table.get("prior") for table in saved.tables), *hexes}
    if known != {trainer.prior_digest}:
        source = saved.settings.prior_data or "the prior data that was passed"
        raise BadInput(
            f"{saved.directories[0]} was trained with other prior data than {source} holds now: restore what it began "
            "with, or start a new run",
            PRIOR_DATA,
        )


def truncate_logs(saved: Saved, index: int) -> list[str]:
    """A seed's files as they were at the step that it goes on from; sentences about logs that were changed since."""
    directory, step = saved.directories[index], saved.step
    after = step or -1  # at step 0 it comes before the evaluation there
    changed = RunFiles(directory).truncate(after, saved.logs[index])
    roll_back_best(directory, after)
    return changed


# ------------------------------------------------------------ one seed


class DirectoryGone(RunFailed):
    """The directory of a run was moved or removed; there is nothing to be saved into."""


@dataclass
class SeedRun:
    """What one seed leaves behind: evaluations, logs and checkpoints; without a directory nothing is written.

    It owns its evaluator: `close` closes it, and so does a failure to make the rest.
    """

    view: SeedView
    evaluator: Evaluator | None = None
    directory: Path | None = None
    store: CheckpointStore | None = None  # the one a resumed run was loaded from

    def __post_init__(self):
        try:
            self._open()
        except BaseException:
            if self.evaluator is not None:
                self.evaluator.close()
            raise

    def _open(self) -> None:
        settings = self.view.settings
        self.files = RunFiles(self.directory) if self.directory else None
        if self.directory and self.store is None:
            self.store = CheckpointStore(inside(self.directory, "checkpoints"), settings.keep)
        self.recorder: StateRecorder | None = None
        if self.directory and settings.record_states:
            states = inside(self.directory, "states.npz")
            go_on = self.view.step > 0 and states.exists()
            self.recorder = StateRecorder.load(states, self.view.step) if go_on else StateRecorder()
        self.extra_sinks = extra_sinks(settings, self.directory) if self.directory else []
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.run = RunView(self.view, self.directory)
        self.watch, self.checkpoint_wait = Stopwatch(), 0.0
        self.logged = self.view.step  # of the last log line

    @property
    def sinks(self) -> list[Sink]:
        return [*([self.files] if self.files else []), *self.extra_sinks]

    def check_there(self) -> None:
        """Ends a run whose directory is not where it was: nothing that it writes could be found, or resumed."""
        if self.directory is not None and not (self.directory / "config.toml").exists():
            raise DirectoryGone(
                f"{self.directory} was moved, emptied or removed while its run was writing to it: put it back and "
                "resume the run, or start it anew"
            )

    def record(self, visited: list[tuple[int, np.ndarray]]) -> None:
        if self.recorder is not None:
            for step, obs in visited:
                self.recorder.add(step, obs[self.view.index])

    def start_rate(self) -> None:
        """Steps per second count from here: what came before was compilation."""
        self.logged = self.view.step
        self.watch.lap()

    def log(self, callbacks: Callbacks) -> dict[str, float]:
        line = self.view.log_line()
        line |= {
            "time/fps": (self.view.step - self.logged) / max(self.watch.lap(), 1e-9),
            "time/elapsed": self.watch.elapsed,
        }
        if self.store is not None:
            line["time/checkpoint_wait"] = self.checkpoint_wait
        line |= self.run.recorded
        self.logged = self.view.step
        self.run.recorded.clear()
        own = dict(line)
        self.check_there()
        try:
            callbacks("on_log", self.run, line)
            line = as_numbers(line) | {name: own[name] for name in ("step", "env_step")}
        except RunFailed:
            line = own
            raise
        finally:
            for sink in self.sinks:
                sink.write(self.view.step, line)
        return line

    def log_recorded(self) -> None:
        """A line of its own for what callbacks recorded after the last log line of a run, at its last evaluation."""
        if self.run.recorded:
            line = {"step": self.view.step, "env_step": self.view.env_step} | self.run.recorded
            self.run.recorded.clear()
            for sink in self.sinks:
                sink.write(self.view.step, line)

    def evaluate(self, callbacks: Callbacks) -> Evaluation | None:
        if self.evaluator is None:
            return None
        view = self.view
        result = self.evaluator(view.evaluation, self.evaluation_index)
        self.check_there()
        self.evaluations.append((view.step, result))
        if self.files:
            self.files.evaluation(view.step, view.env_step, view.settings.seed, result)
        for sink in self.extra_sinks:
            sink.write(view.step, {"eval/mean_reward": float(result.returns.mean())})
        callbacks("on_evaluation", self.run, result)
        return result

    @property
    def evaluation_index(self) -> int:
        """Which evaluation the step calls for, which decides its seeds."""
        return self.view.step // self.view.settings.eval_every

    def check_film(self) -> None:
        """Draws one frame, so that what cannot be filmed is refused before any training."""
        if self.evaluator is not None:
            self.evaluator.look(Video(self.evaluator.fps).watch)

    def film(self) -> None:
        """Plays the last evaluation once more and keeps its first episode as a video."""
        if self.evaluator is not None and self.directory is not None:
            path = inside(self.directory, f"videos/step-{self.view.step:09d}.mp4")
            video = Video(self.evaluator.fps)
            self.evaluator(self.view.evaluation, self.evaluation_index, video.watch)
            video.write(path)

    def save(self, wait: bool = False) -> None:
        if self.store is None or self.directory is None:
            return
        self.check_there()
        if self.recorder is not None and self.recorder.seen:
            self.recorder.save(self.directory / "states.npz")
        assert self.files is not None
        self.files.sync()
        checkpoint.save(self.view, self.store, wait, self.files.arrays())

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, also where one fails
            for part in (self.evaluator, self.store, *self.sinks):
                if part is not None:
                    closing.callback(part.close)


def as_numbers(line: dict[str, Any]) -> dict[str, float]:
    """A log line whose entries, some of which callbacks may have added, are all numbers."""
    for name, value in line.items():
        try:
            line[name] = value if isinstance(value, (int, float)) else float(value)
        except (TypeError, ValueError):
            raise RunFailed(f"a callback gave the metric {name!r} as {type(value).__name__}: give a number") from None
    return line


def extra_sinks(settings: Settings, directory: Path) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.tensorboard:
        sinks.append(TensorBoard(directory))
    if settings.wandb:
        sinks.append(WeightsAndBiases(directory, settings_table(settings)))
    return sinks


def check_outputs(settings: Settings, directory: Path | None) -> None:
    """Refuses what needs a package that is not installed, or a run directory where there is none."""
    for name in known_as("extra", "directory"):
        known = Settings.__dataclass_fields__[name].metadata
        if not getattr(settings, name):
            continue
        if known.get("extra") and find_spec(known["extra"]) is None:
            raise missing_extra(name, flag(name))
        if directory is None and known.get("directory"):
            raise BadInput(f"{name}={getattr(settings, name)} writes into a run directory: pass learn(out=...)")


# ------------------------------------------------------------ all seeds of a run


@dataclass
class Session:
    """The seeds of a trainer, trained together, with everything that happens on a grid of steps.

    Args:
        trainer: agents in their environments.
        runs: what each seed leaves behind.
        env: the name of the environment, where a file may hold it.
        callbacks: what the user wants to happen, as `learn(callback=...)` takes it.
        progress: what a person sees.
        stop_requested: whether to stop, where the caller listens to signals itself.
    """

    trainer: Trainer
    runs: Sequence[SeedRun]
    env: str | None = None
    callbacks: Any = ()
    progress: Progress = field(default_factory=lambda: Progress(0, quiet=True))
    stop_requested: Callable[[], bool] | None = None

    def __post_init__(self):
        settings, directories = self.trainer.settings, [run.directory for run in self.runs]
        self.callbacks = self.callbacks if isinstance(self.callbacks, Callbacks) else Callbacks(self.callbacks)
        self.stop_at: StopAt | None = None
        if settings.stop_at is not None:
            seeds = [run.view.settings.seed for run in self.runs]
            done = [seed for seed, path in zip(seeds, directories) if path and self._reached(path, settings.stop_at)]
            self.stop_at = StopAt(settings.stop_at, seeds, done)
            self.callbacks.add_first(self.stop_at)
        if all(directories):
            self.callbacks.add_first(KeepBest(self.env, self._checkpoint_steps))
        callers = [*self.trainer.pools, *(run.evaluator for run in self.runs if run.evaluator is not None)]
        for caller in [] if self.progress.quiet else callers:
            caller.report_fault = lambda sentence: self.progress.say(escape(sentence))

        lanes = getattr(self.trainer.pools[0], "envs", ()) if self.trainer.pools and all(directories) else ()
        if lanes and (sentence := short_replay(settings, lanes[0])):
            self.warn(sentence)
        if (most := self.trainer.strategy.most_terminated) is not None:
            self.callbacks.add_first(TellUnused(most, self.warn))

    def warn(self, sentence: str) -> None:
        warnings.warn(sentence, stacklevel=5) if self.progress.quiet else self.progress.say(escape(sentence))

    def _reached(self, directory: Path, threshold: float) -> bool:
        return reached(directory, threshold, self.trainer.step)

    def _checkpoint_steps(self, run: RunView) -> list[int]:
        store = self.runs[run.view.index].store
        return store.steps() if store is not None else []

    @classmethod
    @contextmanager
    def restored(
        cls,
        saved: Saved,
        report: Report,
        *,
        env: Any = None,
        eval_env: Any = None,
        prior: Prior | None = None,
        end_hung: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Iterator[Session]:
        """Runs as their newest checkpoints left them, or at step 0 where there are none.

        Args:
            saved: what is on disk; their directories are locked by the caller.
            report: takes sentences about what is not as it was.
            env: what the environment is made of, by default its name.
            eval_env: what to evaluate on, by default the same.
            prior: their prior data, where no file holds it.
            end_hung: what to do about an environment that does not answer, by default to end the process.
            options: those of a `Session`.
        """
        first, source = saved.settings, saved.settings.env if env is None else env
        check_outputs(first, saved.directories[0])
        begun = bool(saved.checkpoints)
        trainer = make_trainer(saved.strategy, saved.per_seed_settings, source, first.steps, begun, prior)
        runs: list[SeedRun] = []
        ready = False
        try:
            check_prior(trainer, saved)
            with watched(first, [*trainer.pools], end_hung) as callers:
                for sentence in restore(trainer, saved):
                    report(sentence)
                for view in trainer.seeds:
                    runs.append(restored_run(view, saved, source, eval_env, report))
                    callers += evaluators(first, runs[-1:])
                session = cls(trainer, runs, first.env if saved.by_name else None, **options)
                ready = True
                yield session
        finally:
            with ExitStack() as closing:
                for run in runs:
                    closing.callback(run.close)
                if not ready:
                    closing.callback(trainer.close)

    def train(self, until: int | None = None) -> bool:
        """Trains until this many transitions, by default those of the settings.

        Returns:
            Whether the run is finished; False where a signal, --max-hours or a callback ended it earlier, with a
            checkpoint.
        """
        try:
            return self._train(self.trainer.settings.steps if until is None else until)
        except NotFinite as bad:
            run = self.runs[bad.seed]
            steps = run.store.steps() if run.store is not None else []
            raise bad.saved(run.directory, max(steps, default=None)) from None
        except DirectoryGone:
            raise
        except RunFailed as error:
            kept = self.save_after_failure()
            raise RunFailed(f"{error} ({kept})" if kept else str(error)) from error

    def _train(self, last: int) -> bool:
        settings, stride, watch = self.trainer.settings, self.trainer.num_envs, Stopwatch()
        log, evaluate, save = (Every(n, stride) for n in (settings.log_every, settings.eval_every, settings.save_every))
        with self.progress, nullcontext(self.stop_requested) if self.stop_requested else signals() as stop_requested:
            if stop_requested():  # while it was made ready: it is where its last checkpoint is
                return False
            if settings.video:
                self.runs[0].check_film()
            for evaluator in [run.evaluator for run in self.runs if run.evaluator is not None]:
                evaluator.stop_requested = stop_requested
            if not self.evaluate(missing=True):
                return False
            whole = True  # whether the last evaluation was played to its end
            compiled: set[bool] = set()  # the first step with and without learning waits for the compiler
            while (step := self.trainer.step) < last and not self.callbacks.stopped_by and not self.reached_return:
                most = min(every.left(step) for every in (log, evaluate, save, Every(last, stride)))
                learns = not self.trainer.warming_up
                visited = self.trainer.advance(most)
                step = self.trainer.step
                if learns not in compiled and not log(step):
                    for run in self.runs:
                        run.start_rate()
                compiled.add(learns)
                for run in self.runs:
                    run.record(visited)
                    self.callbacks("on_step", run.run)
                if log(step) or step >= last:
                    lines = [run.log(self.callbacks) for run in self.runs]
                    self.progress.note(lines[0])
                if (evaluate(step) or step >= last) and not (whole := self.evaluate()):
                    break
                if save(step) and step < last and not self.callbacks.stopped_by:
                    self.save()
                self.progress.step(step)
                if step < last and (stop_requested() or watch.elapsed > (settings.max_hours or math.inf) * 3600):
                    break
            done = whole and (self.trainer.step >= last or self.reached_return)
            if done or self.callbacks.stopped_by:  # no log line follows
                for run in self.runs:
                    run.log_recorded()
            self.save(wait=True)
            if settings.video and done:  # what cannot be filmed costs no work
                with suppress(EvaluationStopped):
                    for run in self.runs:
                        run.film()
        return done

    @property
    def reached_return(self) -> bool:
        """Whether every seed has reached --stop-at, here or before it was continued."""
        return self.stop_at is not None and not self.stop_at.waiting

    def evaluate(self, missing: bool = False) -> bool:
        """Evaluates every seed; with `missing` only those whose step calls for an evaluation that was not logged.

        Returns:
            Whether all were played to their ends; False where a signal came.
        """
        runs = [run for run in self.runs if not missing or self._lacks_evaluation(run)]
        try:
            results = [result for run in runs if (result := run.evaluate(self.callbacks)) is not None]
        except EvaluationStopped:
            return False
        if results:
            returns, lengths = (np.concatenate(part) for part in zip(*results))
            self.progress.evaluated(self.trainer.step, Evaluation(returns, lengths))
        return True

    def _lacks_evaluation(self, run: SeedRun) -> bool:
        """At step 0, or where a run was restored at a step whose evaluation failed."""
        step, settings = self.trainer.step, run.view.settings
        due = step >= settings.steps or Every(settings.eval_every, self.trainer.num_envs)(step)
        return step == 0 or (due and run.directory is not None and lacks_evaluation(run.directory, step))

    def save(self, wait: bool = False) -> None:
        """A checkpoint of every seed; the one before is complete for all of them by then."""
        if self.trainer.action is None:
            self.trainer.begin()
        self.trainer.drain_metrics()
        watch = Stopwatch()
        for run in self.runs:
            if run.store is not None:
                run.store.wait()
        for run in self.runs:
            run.save(wait)
        for run in self.runs:
            run.checkpoint_wait += watch.elapsed
            if run.store is not None:
                self.callbacks("on_checkpoint", run.run)

    def save_after_failure(self) -> str:
        """What a run that failed leaves behind; a checkpoint of where it stood is tried first."""
        stores = [run.store for run in self.runs if run.store is not None]
        last = lambda: min(max(store.steps(), default=0) for store in stores)
        if not stores:
            return ""
        with suppress(RunFailed, BadInput, OSError):  # the failure is what there is to report
            if self.trainer.action is not None and self.trainer.step > last():
                self.save(wait=True)
        return f"what was learned until step {last()} is kept" if last() else "no checkpoint was written yet"


def restored_run(view: SeedView, saved: Saved, env: Any, eval_env: Any, report: Report) -> SeedRun:
    """A seed's files, truncated to the step that it goes on from."""
    directory, store, settings = saved.directories[view.index], saved.stores[view.index], view.settings
    begun = (directory / "eval.csv").exists()
    for sentence in truncate_logs(saved, view.index):
        report(sentence)
    if saved.step is None and begun:
        shared = "of a step that all seeds have one of" if store.steps() else "yet"
        report(f"{directory} has no checkpoint {shared}: starting again from step 0")
    if saved.step is None:
        store.restart()
    return SeedRun(view, make_evaluator(settings, env, view.trainer.spaces, eval_env, report), directory, store)


def evaluators(settings: Settings, runs: Sequence[SeedRun]) -> list[EnvCaller]:
    """Those that call environments of this process; workers have a time limit of their own."""
    apart = settings.workers and not settings.video
    return [run.evaluator for run in runs if run.evaluator is not None and not apart]


@contextmanager
def watched(
    settings: Settings, callers: list[EnvCaller], end_hung: Callable[[str], None] | None = None
) -> Iterator[list[EnvCaller]]:
    """Watches calls into environments of this process; callers that are added to the list are watched, too."""
    watching: list[EnvCaller] = [] if settings.workers else callers
    with Watchdog(settings.env_timeout, watching, *([] if end_hung is None else [end_hung])):
        yield watching


class Every:
    """True when a counter has passed a multiple of `period` since the last step of `stride`."""

    def __init__(self, period: int, stride: int):
        self.period, self.stride = period, stride

    def __call__(self, step: int) -> bool:
        return step // self.period > (step - self.stride) // self.period

    def left(self, step: int) -> int:
        """Steps of `stride` until it is true again."""
        return math.ceil((self.period - step % self.period) / self.stride)


class Stopwatch:
    def __init__(self):
        self.began = self.last = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def lap(self) -> float:
        now = time.perf_counter()
        lap, self.last = now - self.last, now
        return lap
