"""An environment in its own process: a crash or hang affects only its lane.

Commands and answers are pickled objects in a pipe between two processes of one run; nothing from a file or another user
is unpickled. A worker ends with its parent, however that dies, and ignores signals, which the parent handles.
"""

import atexit
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any
from weakref import WeakSet

import gymnasium as gym
import numpy as np

from maxinforl.envs.fault import close_quietly, most_steps
from maxinforl.errors import BadInput, RunFailed, one_line

START = 120.0  # seconds more than usual that a worker may take to import and build its environment
GRACE = 5.0  # seconds that a worker may take to close its environment
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_running: WeakSet[BaseProcess] = WeakSet()


@atexit.register
def _kill_all() -> None:
    """Runs before multiprocessing's own exit handler, which would wait for workers that were not closed."""
    for process in list(_running):
        process.kill()


class Worker(gym.Env):
    """Answers `reset`, `step`, `skip` and `close` for the environment that `build` makes in a new process.

    `send` begins a step without waiting, so that workers step in parallel; the `step` that follows collects the result.
    """

    def __init__(self, build: Callable[[], gym.Env], timeout: float):
        check_sendable(build)
        context = get_context("spawn")
        self.timeout, self._sent = timeout, False
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, build), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited, until the worker ignores them itself
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        _running.add(self._process)
        self._ask("wait_ready")

    def wait_ready(self) -> "Worker":
        """Waits until the environment is built, and stores its spaces and name."""
        try:
            facts = self._receive(self.timeout + START)
            self.observation_space, self.action_space, self.name, self.most_steps = facts
        except BadInput as error:
            raise BadInput(
                f"{error} (in a worker, which only knows what it can import: name your own environment module:Name)"
            ) from None
        return self

    def send(self, action: np.ndarray) -> None:
        self._ask("step", action)
        self._sent = True

    def step(self, action):
        if not self._sent:
            self._ask("step", action)
        self._sent = False
        return self._receive(self.timeout)

    def skip(self, action: np.ndarray) -> tuple[float, bool, bool]:
        self._ask("skip", action)
        return self._receive(self.timeout)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._ask("reset", seed)
        return self._receive(self.timeout)

    def close(self) -> None:
        if not self._pipe.closed:
            self._ask("close")
            self._process.join(GRACE)
            self._kill()

    def _ask(self, command: str, argument: Any = None) -> None:
        with suppress(OSError):  # a worker that is gone is detected when its answer is missing
            self._pipe.send((command, argument))

    def _receive(self, timeout: float) -> Any:
        try:
            if not self._answers(timeout):
                self._kill()
                raise RunFailed(f"its process did not answer within {timeout:g} s")
            problem, value = self._pipe.recv()
        except (EOFError, OSError):
            raise RunFailed(f"its process {self._end()}") from None
        if problem is not None:
            raise problem(value)
        return value

    def _answers(self, timeout: float) -> bool:
        """Whether there is an answer in time, counted in ticks: a suspended process sees one pass, however long."""
        tick = min(1.0, timeout / 4)
        return any(self._pipe.poll(tick) for _ in range(math.ceil(timeout / tick)))

    def _end(self) -> str:
        if self._pipe.closed:
            return "is gone"
        self._process.join(GRACE)
        code = self._process.exitcode
        self._kill()
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}" if code is not None else "closed its pipe"

    def _kill(self) -> None:
        """Ends the process and closes its handles."""
        self._process.kill()
        self._process.join()
        _running.discard(self._process)
        self._process.close()
        self._pipe.close()


def check_sendable(build: Any) -> None:
    """BadInput if a new process could not import what makes the environment."""
    try:
        ForkingPickler.dumps(build)
    except Exception as error:
        raise BadInput(
            f"an environment in a worker process must be a name or a function at the top level of a module ({error})"
        ) from None


# ------------------------------------------------------------ in the worker


class WorkerServer:
    """The worker's side: a method for every command."""

    def __init__(self, build: Callable[[], Any]):
        self.build = build

    def wait_ready(self, _: None) -> tuple[Any, Any, str, int | None]:
        self.env = self.build()
        return self.env.observation_space, self.env.action_space, self.env.name, most_steps(self.env)

    def reset(self, seed: int | None) -> tuple[Any, dict]:
        return self.env.reset(seed=seed)[0], {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict]:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated, truncated, {}

    def skip(self, action: np.ndarray) -> tuple[float, bool, bool]:
        return self.env.skip(action)

    def close(self, _: None) -> None:
        close_quietly(self.env)


def serve(pipe: Connection, build: Callable[[], gym.Env]) -> None:
    """Answers commands until the pipe ends."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # the parent decides when to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Thread(target=end_with_parent, daemon=True).start()
    use_cpu_only()
    server, command = WorkerServer(build), ""
    with suppress(EOFError, OSError):
        while command != "close":
            command, argument = pipe.recv()
            pipe.send(attempt(getattr(server, command), argument))


def use_cpu_only() -> None:
    """Leaves the accelerator to the learner: only simulators written in JAX import it here, or a user's own module."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def attempt(function: Callable, argument: Any) -> tuple[type[Exception] | None, Any]:
    """The result of a command, or the type of its error and a sentence."""
    try:
        return None, function(argument)
    except (BadInput, RunFailed) as error:
        return type(error), str(error)
    except Exception as error:
        return RunFailed, f"raised {one_line(error)}"


def end_with_parent() -> None:
    """Ends this process when its parent is gone, whatever the environment is doing."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
