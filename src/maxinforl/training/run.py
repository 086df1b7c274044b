"""One run from its first step to its last: evaluation, logs, checkpoints and progress on a grid of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.markup import escape

from maxinforl.envs.record import StateRecorder
from maxinforl.errors import BadInput, RunFailed
from maxinforl.files import inside
from maxinforl.training import checkpoint
from maxinforl.training.evaluate import Evaluation, Evaluator
from maxinforl.training.guard import NotFinite
from maxinforl.training.log import RunFiles, Sink
from maxinforl.training.loop import Every, Member, Stopwatch, Trainer, signals
from maxinforl.training.progress import Progress
from maxinforl.training.store import CheckpointStore
from maxinforl.training.video import Video


@dataclass
class Run:
    """What one seed leaves behind: evaluations, logs and checkpoints; without a directory nothing is written."""

    member: Member
    evaluator: Evaluator | None = None
    directory: Path | None = None
    extra_sinks: list[Sink] = field(default_factory=list)
    recorder: StateRecorder | None = None
    store: CheckpointStore | None = None  # the one a resumed run was loaded from

    def __post_init__(self):
        self.files = RunFiles(self.directory) if self.directory else None
        if self.directory and self.store is None:
            self.store = CheckpointStore(inside(self.directory, "checkpoints"), self.member.settings.keep)
        self.sinks: list[Sink] = [*([self.files] if self.files else []), *self.extra_sinks]
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.watch = Stopwatch()
        self.paused = 0.0  # seconds for which training stood still for checkpoints

    def record(self, visited: list[tuple[int, np.ndarray]]) -> None:
        if self.recorder is not None:
            for step, obs in visited:
                self.recorder.add(step, obs[self.member.index])

    def log(self) -> dict[str, float]:
        since = self.member.settings.log_every
        line = self.member.log_line()
        line |= {"time/fps": since / max(self.watch.lap(), 1e-9), "time/elapsed": self.watch.elapsed}
        if self.store is not None:
            line["time/checkpoint_wait"] = self.paused
        for sink in self.sinks:
            sink.write(self.member.step, line)
        return line

    def evaluate(self) -> Evaluation | None:
        if self.evaluator is None:
            return None
        member = self.member
        result = self.evaluator(member.evaluation, self._evaluation)
        self.evaluations.append((member.step, result))
        if self.files:
            self.files.evaluation(member.step, member.env_step, member.settings.seed, result)
        for sink in self.extra_sinks:
            sink.write(member.step, {"eval/mean_reward": float(result.returns.mean())})
        return result

    @property
    def _evaluation(self) -> int:
        """Which evaluation the step calls for, which decides its seeds."""
        return self.member.step // self.member.settings.eval_every

    def check_film(self) -> None:
        """Draws one frame, so that what cannot be filmed is refused before any training."""
        if self.evaluator is not None:
            self.evaluator.look(Video(self.evaluator.fps).watch)

    def film(self) -> None:
        """Plays the last evaluation once more and keeps its first episode as a video."""
        if self.evaluator is not None and self.directory is not None:
            path = inside(self.directory, f"videos/step-{self.member.step:09d}.mp4")
            video = Video(self.evaluator.fps)
            self.evaluator(self.member.evaluation, self._evaluation, video.watch)
            video.write(path)

    def save(self, wait: bool = False) -> None:
        if self.store is None or self.directory is None:
            return
        if self.recorder is not None:
            self.recorder.save(self.directory / "states.npz")
        assert self.files is not None
        self.files.sync()
        checkpoint.save(self.member, self.store, wait, self.files.arrays())

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        if self.store is not None:
            self.store.close()
        if self.evaluator is not None:
            self.evaluator.close()


@dataclass
class Drive:
    """Takes the seeds of a trainer through training together, with everything that happens on a grid of steps."""

    trainer: Trainer
    runs: Sequence[Run]
    progress: Progress
    asked: Callable[[], bool] | None = None  # whether to stop, where the caller listens to signals itself

    def __post_init__(self):
        callers = [*self.trainer.pools, *(run.evaluator for run in self.runs if run.evaluator is not None)]
        for caller in [] if self.progress.quiet else callers:
            caller.report_fault = lambda sentence: self.progress.say(escape(sentence))

    def until(self, last: int) -> bool:
        """Trains until `last` transitions; False where a signal or --max-hours ended it earlier, with a checkpoint."""
        try:
            return self._until(last)
        except NotFinite as bad:
            run = self.runs[bad.seed]
            steps = run.store.steps() if run.store is not None else []
            raise bad.saved(run.directory, max(steps, default=None)) from None
        except RunFailed as error:
            kept = self.kept()
            raise RunFailed(f"{error} ({kept})" if kept else str(error)) from error

    def kept(self) -> str:
        """What a run that failed leaves behind; a checkpoint of where it stood is tried first."""
        stores = [run.store for run in self.runs if run.store is not None]
        last = lambda: min(max(store.steps(), default=0) for store in stores)
        if not stores:
            return ""
        if self.trainer.action is not None and self.trainer.step > last():
            with suppress(RunFailed, BadInput, OSError):  # the failure is what there is to tell
                self.save(wait=True)
        return f"what was learned until step {last()} is kept" if last() else "no checkpoint was written yet"

    def _until(self, last: int) -> bool:
        settings, stride = self.trainer.settings, self.trainer.num_envs
        log, evaluate, save = (Every(n, stride) for n in (settings.log_every, settings.eval_every, settings.save_every))
        watch = Stopwatch()
        with self.progress, nullcontext(self.asked) if self.asked else signals() as asked:
            if asked():  # while it was made ready: it is where its last checkpoint is
                return False
            if settings.video:
                self.runs[0].check_film()
            if self.trainer.step == 0:
                self.evaluate()
            while (step := self.trainer.step) < last:
                most = min(every.left(step) for every in (log, evaluate, save, Every(last, stride)))
                visited = self.trainer.advance(most)
                step = self.trainer.step
                for run in self.runs:
                    run.record(visited)
                if log(step) or step >= last:
                    lines = [run.log() for run in self.runs]
                    self.progress.note(lines[0])
                if evaluate(step) or step >= last:
                    self.evaluate()
                if save(step) and step < last:
                    self.save()
                self.progress.step(step)
                if step < last and (asked() or watch.elapsed > (settings.max_hours or math.inf) * 3600):
                    break
            self.save(wait=True)
            if settings.video and self.trainer.step >= last:  # what cannot be filmed costs no work
                for run in self.runs:
                    run.film()
        return self.trainer.step >= last

    def evaluate(self) -> None:
        results = [result for run in self.runs if (result := run.evaluate()) is not None]
        if results:
            returns, lengths = (np.concatenate(part) for part in zip(*results))
            self.progress.evaluated(self.trainer.step, Evaluation(returns, lengths))

    def save(self, wait: bool = False) -> None:
        """A checkpoint of every seed; the one before is complete for all of them by then."""
        self.trainer.settle()
        watch = Stopwatch()
        for run in self.runs:
            if run.store is not None:
                run.store.wait()
        for run in self.runs:
            run.save(wait)
        for run in self.runs:
            run.paused += watch.elapsed

    def close(self) -> None:
        for run in self.runs:
            run.close()
