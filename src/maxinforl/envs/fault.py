"""Calls into environments: whatever breaks becomes a sentence, and whatever hangs can be seen to."""

import os
import sys
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from maxinforl.errors import RunFailed

FAILED = 3  # the exit code of a run that failed


class Fault(RunFailed):
    """An environment broke; what ran in it can go on in a new one."""


class Caller:
    """Holds environments by lane and calls into them; `entered` is the lane and time of the call that is under way."""

    entered: tuple[int, float] | None = None

    def _call(self, lane: int, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls into an environment; whatever it raises becomes a sentence that says where."""
        self.entered = lane, time.monotonic()
        try:
            return function(*args, **kwargs)
        except RunFailed as error:
            raise Fault(f"{self._where(lane)}: {error}") from error
        except Exception as error:
            raise Fault(f"{self._where(lane)} raised {type(error).__name__}: {error}") from error
        finally:
            self.entered = None

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

    def __init__(self, seconds: float, callers: list[Caller], end: Callable[[str], None] = leave):
        self.seconds, self.callers, self.end = seconds, callers, end
        self._over = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.seconds / 4)):
            for caller in self.callers:
                entered = caller.entered
                if entered is not None and time.monotonic() - entered[1] > self.seconds:
                    self.end(
                        f"{caller._where(entered[0])} has hung for {self.seconds:g} s, so the run ends here; its last "
                        "checkpoint is kept, `maxinforl resume` goes on from it, and --workers survives such hangs"
                    )
                    return
