"""One run from its first step to its last: evaluation, logs, checkpoints and progress on a grid of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from maxinforl.envs.record import StateRecorder
from maxinforl.training import checkpoint
from maxinforl.training.evaluate import Evaluation, Evaluator
from maxinforl.training.guard import NotFinite
from maxinforl.training.log import RunFiles, Sink
from maxinforl.training.loop import Every, Stopwatch, Trainer, signals
from maxinforl.training.progress import Progress
from maxinforl.training.store import CheckpointStore
from maxinforl.training.video import Video


@dataclass
class Outcome:
    """How a run went: `finished` is False when a signal or the clock stopped it."""

    finished: bool = True
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)


@dataclass
class Run:
    """A trainer with everything around it; without a directory nothing is written."""

    trainer: Trainer
    progress: Progress
    evaluator: Evaluator | None = None
    directory: Path | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    extra_sinks: list[Sink] = field(default_factory=list)
    recorder: StateRecorder | None = None
    store: CheckpointStore | None = None  # the one a resumed run was loaded from

    def __post_init__(self):
        self.files = RunFiles(self.directory) if self.directory else None
        if self.directory and self.store is None:
            self.store = CheckpointStore(self.directory / "checkpoints", self.trainer.settings.keep)
        self.sinks: list[Sink] = [*([self.files] if self.files else []), *self.extra_sinks]
        self.outcome, self.watch = Outcome(), Stopwatch()
        if not self.progress.quiet:
            self.trainer.pool.tell = lambda sentence: self.progress.say(escape(sentence))

    def until(self, last: int) -> Outcome:
        """Trains until `last` transitions; a signal or --max-hours ends it earlier, with a checkpoint."""
        try:
            return self._until(last)
        except NotFinite as bad:
            steps = self.store.steps() if self.store is not None else []
            raise bad.saved(self.directory, max(steps, default=None)) from None

    def _until(self, last: int) -> Outcome:
        settings, stride = self.trainer.settings, self.trainer.pool.num_envs
        log, evaluate, save = (Every(n, stride) for n in (settings.log_every, settings.eval_every, settings.save_every))
        with self.progress, signals() as asked:
            if self.trainer.step == 0:
                self.evaluate()
            while self.trainer.step < last:
                obs = self.trainer.advance()
                step = self.trainer.step
                if self.recorder is not None:
                    self.recorder.add(step, obs)
                if log(step) or step >= last:
                    self.log()
                if evaluate(step) or step >= last:
                    self.evaluate(film=settings.video and step >= last)
                if save(step) and step < last:
                    self.save()
                self.progress.step(step)
                if step < last and (asked() or self.out_of_time()):
                    self.outcome.finished = False
                    break
            self.save(wait=True)
        return self.outcome

    def out_of_time(self) -> bool:
        hours = self.trainer.settings.max_hours
        return hours is not None and self.watch.elapsed > hours * 3600

    def log(self) -> None:
        since = self.trainer.settings.log_every
        line = self.trainer.log_line()
        line |= {"time/fps": since / max(self.watch.lap(), 1e-9), "time/elapsed": self.watch.elapsed}
        if self.store is not None:
            line["time/checkpoint_wait"] = self.store.waited
        for sink in self.sinks:
            sink.write(self.trainer.step, line)
        self.progress.note(line)

    def evaluate(self, film: bool = False) -> None:
        """One evaluation; `film` keeps its first episode as a video."""
        if self.evaluator is None:
            return
        trainer = self.trainer
        index = trainer.step // trainer.settings.eval_every
        video = Video(self.evaluator.fps) if film and self.directory else None
        result = self.evaluator(trainer.evaluation, index, video.watch if video else None)
        if video is not None and self.directory is not None:
            video.write(self.directory / "videos" / f"step-{trainer.step:09d}.mp4")
        self.outcome.evaluations.append((trainer.step, result))
        if self.files:
            self.files.evaluation(trainer.step, trainer.env_step, trainer.settings.seed, result)
        for sink in self.extra_sinks:
            sink.write(trainer.step, {"eval/mean_reward": float(result.returns.mean())})
        self.progress.evaluated(trainer.step, result)

    def save(self, wait: bool = False) -> None:
        if self.store is None or self.directory is None:
            return
        if self.recorder is not None:
            self.recorder.save(self.directory / "states.npz")
        if self.files is not None:
            self.files.sync()
        checkpoint.save(self.trainer, self.store, self.meta, wait)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        if self.store is not None:
            self.store.close()
        if self.evaluator is not None:
            self.evaluator.close()


def visited(trainer: Trainer, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """States still in the replay with the order they were met in, thinned to `most`."""
    replay = trainer.state.replay
    head, rows = int(np.array(replay.head)[0]), replay.rows
    order = np.arange(max(0, head - rows + 1), head + 1)
    order = order[:: max(1, len(order) // most)]
    return order, np.array(replay.obs[0, order % rows])
