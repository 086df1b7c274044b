"""Evaluation apart from training: own seeded environments, deterministic actions, every episode a lane of one act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from maxinforl import envs, files
from maxinforl.envs import EnvCaller, Fault, env_name, episode_seed
from maxinforl.envs.pixels import picture
from maxinforl.envs.wrapper import rescale
from maxinforl.errors import BadInput, RunFailed, missing_extra
from maxinforl.prior import EpisodeRecorder
from maxinforl.settings import Settings, env_options
from maxinforl.spaces import Spaces

TRIES = 3  # environments made anew in one evaluation before it is given up
EVALUATION = 1_000_003  # keeps the seeds of evaluation apart from those of training
MOST_STEPS = 100_000  # of an episode where neither the environment nor the settings limit it


class Evaluation(NamedTuple):
    returns: np.ndarray
    lengths: np.ndarray


class Unrecorded:
    """Takes what an `EpisodeRecorder` does and keeps nothing."""

    def begin(self, lane: int, obs: np.ndarray) -> np.ndarray:
        return obs

    def add(self, *_: Any) -> None: ...


class EvaluationStopped(Exception):
    """A signal came during an evaluation, which is to be repeated."""


def make_evaluator(
    settings: Settings, env: Any, spaces: Spaces, eval_env: Any = None, report: Callable[[str], None] = lambda _: None
) -> Evaluator | None:
    """Environments of its own for an agent, one per episode; None where none can be made or none are asked for.

    Args:
        settings: resolved settings; `eval_episodes` is how many.
        env: what the agent trains on: a name, an environment or a function that makes one.
        spaces: what the agent observes and does.
        eval_env: what to evaluate on instead; an environment that exists is the only one.
        report: takes a sentence where evaluations are asked for and cannot be made.
    """
    source, limit = env if eval_env is None else eval_env, settings.eval_limit
    if settings.eval_episodes == 0:
        return None
    if eval_env is None and not can_be_made(source):
        if settings.stop_at is not None or settings.video:
            raise BadInput("stop_at and video need evaluations: pass eval_env=, or a factory in place of the instance")
        report("evaluation is skipped: it needs eval_env=, or a factory in place of the instance")
        return None
    if not can_be_made(source):
        only = envs.make(source, **env_options(settings))
        evaluator = Evaluator([only], settings.seed, spaces.stack(settings), limit=limit)
    else:
        modes = ["rgb_array" if settings.video and lane == 0 else None for lane in range(settings.eval_episodes)]
        builds = [partial(envs.make, source, **env_options(settings), render_mode=mode) for mode in modes]
        apart = settings.workers and not settings.video  # what is filmed renders here
        lanes, makers = envs.make_lanes(builds, settings.env_timeout if apart else None)
        evaluator = Evaluator(lanes, settings.seed, spaces.stack(settings), makers, limit)
    try:
        spaces.check_shapes(Spaces(evaluator.envs[0].observation_space, evaluator.envs[0].action_space))  # type: ignore[arg-type]
    except BaseException:
        evaluator.close()
        raise
    return evaluator


def episode_limit(env: gym.Env, asked: int | None = None) -> int | None:
    """Steps after which an evaluation cuts an episode; None where the environment limits them itself."""
    return asked if asked is not None or envs.most_steps(env) else MOST_STEPS


def can_be_made(env: Any) -> bool:
    """Whether there can be several of an environment: of a name or a function, but not of one that exists."""
    return isinstance(env, str) or (callable(env) and not isinstance(env, (gym.Env, VectorEnv)))


class Stack:
    """The last frames of every lane on the channel axis, oldest first; a reset fills them with the first."""

    def __init__(self, obs: np.ndarray, depth: int):
        self.channels = obs.shape[-1]
        self.frames = np.concatenate([obs] * depth, -1) if depth > 1 else obs

    def fill(self, lane: int, frame: np.ndarray) -> None:
        self.frames[lane] = np.concatenate([frame] * (self.frames.shape[-1] // frame.shape[-1]), -1)

    def push(self, lane: int, frame: np.ndarray) -> None:
        if self.frames.shape[-1] == frame.shape[-1]:
            self.frames[lane] = frame
        else:
            self.frames[lane] = np.concatenate([self.frames[lane][..., self.channels :], frame], -1)


class Evaluator(EnvCaller):
    """Plays one episode in each of its environments; where one breaks, `makers` make it anew and its episode begins
    again, `TRIES` times in an evaluation. An episode ends after `limit` steps, by default see `episode_limit`. Where
    `stop_requested` gives True, an evaluation under way raises `EvaluationStopped`."""

    def __init__(
        self,
        lanes: list[gym.Env],
        seed: int,
        stack: int = 1,
        makers: Sequence[Callable[[], gym.Env]] | None = None,
        limit: int | None = None,
    ):
        super().__init__()
        self.envs, self.seed, self.stack, self.makers = lanes, seed, stack, makers
        self.native = rescale(lanes[0].action_space)  # type: ignore[arg-type]
        self.limit = episode_limit(lanes[0], limit)
        self.stop_requested: Callable[[], bool] = lambda: False
        self._said = False  # that an episode was cut

    @property
    def fps(self) -> float:
        """Frames per second of real time, one frame per agent step, where the environment says."""
        return float(self.envs[0].metadata.get("render_fps") or 30) / getattr(self.envs[0], "action_repeat", 1)

    def __call__(
        self,
        act: Callable[[np.ndarray], np.ndarray],
        index: int,
        watch: Callable | None = None,
        record: EpisodeRecorder | None = None,
    ) -> Evaluation:
        """Evaluation number `index`: its episodes have seeds of their own. `watch(env)` sees lane 0 after each step,
        and `record` all that happens."""
        self._tries, note = TRIES, Unrecorded() if record is None else record
        first = [note.begin(lane, self._begin(lane, index)) for lane in range(len(self.envs))]
        stack = Stack(np.stack(first), self.stack)
        returns, lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)
        running = list(range(len(self.envs)))
        while running:
            actions = self.native(np.array(act(stack.frames.copy())))
            for lane in list(running):
                try:
                    obs, reward, *ended, _ = self._call(lane, self.envs[lane].step, actions[lane])
                    self._check_lane(lane, obs)
                    self._check_reward(lane, reward)
                except Fault as fault:
                    stack.fill(lane, note.begin(lane, self._again(lane, index, fault)))
                    returns[lane], lengths[lane] = 0.0, 0
                    continue
                stack.push(lane, obs)
                returns[lane] += float(reward)
                lengths[lane] += 1
                if watch is not None and lane == 0:
                    self._call(0, watch, self.envs[0])
                over = any(ended) or self._at_limit(int(lengths[lane]))
                note.add(lane, actions[lane], float(reward), obs, bool(ended[0]), over and not ended[0])
                if over:
                    running.remove(lane)
                if self.stop_requested():
                    raise EvaluationStopped
        return Evaluation(returns, lengths)

    def _at_limit(self, length: int) -> bool:
        """Whether an episode is cut here, which is said once."""
        if self.limit is None or length < self.limit:
            return False
        if not self._said:
            self.report_fault(f"an evaluation episode was cut after {length} steps: --eval-limit allows more or fewer")
        self._said = True
        return True

    def look(self, watch: Callable) -> None:
        """Shows `watch` how an episode begins."""
        self._tries = 0
        self._begin(0, 0)
        self._call(0, watch, self.envs[0])

    def _begin(self, lane: int, index: int) -> np.ndarray:
        try:
            obs, _ = self._call(lane, self.envs[lane].reset, seed=episode_seed(self.seed + EVALUATION, lane, index))
            self._check_lane(lane, obs)
            return obs
        except Fault as fault:
            return self._again(lane, index, fault)

    def _again(self, lane: int, index: int, fault: Fault) -> np.ndarray:
        """The first observation of the same episode in an environment made anew."""
        if self.makers is None:
            raise fault
        if self._tries == 0:
            raise Fault(f"{fault}, one fault more than the {TRIES} that an evaluation survives") from fault
        self._tries -= 1
        self.report_fault(f"{fault}; it was made anew, and its episode begins again")
        with suppress(Fault):
            self._call(lane, self.envs[lane].close)
        before, env = self.envs[lane], self._call(lane, self.makers[lane])
        if (env.observation_space.shape, env.action_space) != (before.observation_space.shape, before.action_space):
            raise RunFailed(f"{self._where(lane)}: the new environment has other observations or actions")
        self.envs[lane] = env
        return self._begin(lane, index)

    def _where(self, lane: int) -> str:
        return f"environment {lane} of the evaluation ({env_name(self.envs[lane])})"

    def close(self) -> None:
        """Closes its environments, but for one that the user made."""
        for lane, env in enumerate(self.envs if self.makers is not None else []):
            with suppress(Fault):
                self._call(lane, env.close)


class Video:
    """Collects the frames of one episode and writes them."""

    def __init__(self, fps: float):
        try:
            import imageio.v3 as imageio
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise missing_extra("video", "--video") from error
        self.imageio, self.fps, self.frames = imageio, fps, []

    def watch(self, env: Any) -> None:
        frame = picture(env)
        height, width = (n - n % 2 for n in frame.shape[:2])  # the codec takes even sizes only
        self.frames.append(frame[:height, :width])

    def write(self, path: Path) -> None:
        with files.writing(path):  # the codec needs room for a temporary file
            film = self.imageio.imwrite(
                "<bytes>", np.stack(self.frames), extension=".mp4", fps=self.fps, macro_block_size=1
            )
        files.make_directory(path.parent)
        files.write_atomic(path, film)
