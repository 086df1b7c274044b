"""Calls into environments: exceptions become one sentence, and a watchdog ends calls that hang."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import numpy as np

from maxinforl.errors import BadInput, RunFailed, one_line

FAILED = 3  # the exit code of a run that failed
LARGEST = float(np.finfo(np.float32).max)
SMALL = 64  # entries up to which Python floats are faster than NumPy (caches are cold after an update)


def finite(array: np.ndarray) -> bool:
    """Whether all entries of a float array are finite."""
    if array.size <= SMALL:
        return all(map(math.isfinite, array.reshape(-1).tolist()))
    return bool(np.isfinite(array).all())


class Fault(RunFailed):
    """An environment failed; its lane can continue in a new one."""


class EnvCaller:
    """Calls into the environments of its lanes (a lane is the index of an environment).

    `entered` is the lane and start time of the call in progress; `report_fault` is called with one sentence for every
    fault that was repaired.
    """

    entered: tuple[int, float] | None = None

    def __init__(self):
        self.report_fault: Callable[[str], None] = lambda sentence: warnings.warn(sentence, stacklevel=2)

    def _call(self, lane: int, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of an environment; whatever it raises becomes a Fault that names the place."""
        self.entered = lane, time.monotonic()
        try:
            return function(*args, **kwargs)
        except BadInput:  # such as a package that is not installed
            raise
        except RunFailed as error:
            raise Fault(f"{self._where(lane)}: {error}") from error
        except (Exception, SystemExit) as error:
            raise Fault(f"{self._where(lane)} raised {one_line(error)}") from error
        finally:
            self.entered = None

    def _check_lane(self, lane: int, obs: np.ndarray) -> None:
        if obs.dtype.kind == "f" and not finite(obs):
            entry = int(np.flatnonzero(~np.isfinite(obs))[0])
            raise Fault(f"{self._where(lane)}: the observation is {obs[entry]} at entry {entry}")

    def _check_reward(self, lane: int, reward: float) -> None:
        if not math.isfinite(reward):
            raise Fault(f"{self._where(lane)}: the reward is {reward}")
        if abs(reward) > LARGEST:
            raise Fault(f"{self._where(lane)}: the reward is {reward}, which is more than float32 holds")

    def _where(self, lane: int) -> str:
        """The environment of a lane, with its episode and step."""
        raise NotImplementedError


def most_steps(env: Any) -> int | None:
    """Base steps after which an environment ends an episode, where it says so."""
    told = getattr(env, "most_steps", None)  # by a worker
    return told if isinstance(told, int) else getattr(getattr(env, "spec", None), "max_episode_steps", None)


def close_quietly(env: Any) -> None:
    """Closes an environment that is not needed any more; one that fails to is left as it is."""
    with suppress(Exception, SystemExit):
        env.close()


def leave(sentence: str) -> None:
    """Ends this process at once, because its main thread hangs."""
    sys.stdout.flush()
    print(f"maxinforl: {sentence}", file=sys.stderr, flush=True)
    os._exit(FAILED)


class Watchdog:
    """Ends the process when a call into an environment lasts longer than `seconds`.

    Checkpoints are complete or absent however the process ends, and the kernel releases the run's lock.
    """

    def __init__(self, seconds: float, callers: list[EnvCaller], end: Callable[[str], None] = leave):
        self.seconds, self.callers, self.end = seconds, callers, end
        self._over = Event()
        self._tick = min(1.0, seconds / 4)
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Counts its own ticks during one call, so that suspending the whole process does not count as a hang."""
        seen: dict[int, tuple[Any, int]] = {}
        while not self._over.wait(self._tick):
            for number, caller in enumerate(list(self.callers)):
                call, ticks = seen.get(number, (None, 0))
                entered = caller.entered
                seen[number] = entered, ticks + 1 if entered is call else 0
                if entered is not None and seen[number][1] * self._tick >= self.seconds:
                    self.end(
                        f"{caller._where(entered[0])} has hung for {self.seconds:g} s, so the run ends here; its last "
                        "checkpoint is kept, `maxinforl resume` continues from it, and --workers survives such hangs"
                    )
                    return
