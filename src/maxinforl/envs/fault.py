"""Calls into environments: whatever breaks becomes a sentence, and whatever hangs can be seen to."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import numpy as np

from maxinforl.errors import BadInput, RunFailed, one_line

FAILED = 3  # the exit code of a run that failed
LARGEST = float(np.finfo(np.float32).max)
SMALL = 64  # entries: Python's floats are quicker up to here, above all on caches that an update has just emptied


def finite(array: np.ndarray) -> bool:
    """Whether all of a float array is finite."""
    if array.size <= SMALL:
        return all(map(math.isfinite, array.reshape(-1).tolist()))
    return bool(np.isfinite(array).all())


class Fault(RunFailed):
    """An environment broke; what ran in it can go on in a new one."""


class EnvCaller:
    """Holds environments by lane and calls into them; `entered` is the lane and time of the call that is under way.

    `tell` says what broke and was mended.
    """

    entered: tuple[int, float] | None = None

    def __init__(self):
        self.tell: Callable[[str], None] = lambda sentence: warnings.warn(sentence, stacklevel=2)

    def _call(self, lane: int, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls into an environment; whatever it raises becomes a sentence that says where."""
        self.entered = lane, time.monotonic()
        try:
            return function(*args, **kwargs)
        except BadInput:  # something that is not installed
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
        """The environment of a lane and what it is doing."""
        raise NotImplementedError


def leave(sentence: str) -> None:
    """Ends this process at once: its main thread is stuck and can neither be asked nor told."""
    sys.stdout.flush()
    print(f"maxinforl: {sentence}", file=sys.stderr, flush=True)
    os._exit(FAILED)


class Watchdog:
    """Ends the process when a call into an environment lasts longer than `seconds`.

    Checkpoints are whole or absent however the process ends, and the kernel lets go of the run's lock.
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
        """Counts its own ticks in one call, so that time for which the whole process was suspended is no hang."""
        seen: dict[int, tuple[Any, int]] = {}
        while not self._over.wait(self._tick):
            for number, caller in enumerate(list(self.callers)):
                call, ticks = seen.get(number, (None, 0))
                entered = caller.entered
                seen[number] = entered, ticks + 1 if entered is call else 0
                if entered is not None and seen[number][1] * self._tick >= self.seconds:
                    self.end(
                        f"{caller._where(entered[0])} has hung for {self.seconds:g} s, so the run ends here; its last "
                        "checkpoint is kept, `maxinforl resume` goes on from it, and --workers survives such hangs"
                    )
                    return
