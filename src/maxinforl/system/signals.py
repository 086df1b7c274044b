"""SIGINT and SIGTERM ask a run to save and stop; a second one ends it at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from typing import Any

PREEMPTED = 75  # the exit code of a run that can go on later
STOPS = (signal.SIGINT, signal.SIGTERM)
OVER = b"\0"  # no signal has this number

_listening: list[Callable] = []  # the handlers of ours that are in place


_masks: list[Any] = []  # of signals, of forks that are under way


def _block() -> None:
    """No signal may come between a fork and what the child forgets."""
    if _listening:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, STOPS))


def _unblock() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _forget_in_child() -> None:
    """A forked child takes signals for itself, and does not speak for this process through its pipe."""
    if _listening:
        _listening.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_forget_in_child)


@contextmanager
def signals(ends_process: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has asked to stop; a second one interrupts, or ends the process at once."""
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1 and not ends_process:
            raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, handle) for s in STOPS}
    except ValueError:  # not the main thread: nothing can be caught here
        yield lambda: False
        return
    _listening.append(handle)
    try:
        with end_at_second() if ends_process else nullcontext():
            yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if handle in _listening:
            _listening.remove(handle)


@contextmanager
def end_at_second() -> Iterator[None]:
    """Ends the process at the second signal even where the main thread runs no Python, as in XLA's compiler."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        count = 0
        while (number := os.read(reader, 1)) != OVER:
            count += number[0] in STOPS
            if count > 1:
                leave_at_once()

    thread = Thread(target=listen, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, OVER)  # closing would not do: a child that lives on may have this end open, too
        thread.join()
        os.close(writer)
        os.close(reader)


def leave_at_once() -> None:
    """Checkpoints are whole or absent however a process ends."""
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # the progress bar hides the cursor
    os._exit(PREEMPTED)
