"""Launchers for the runs of a suite: processes on this machine, a Ray cluster, or Slurm.

A job is one command that may be started any number of times: it starts the run, or resumes it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from maxinforl.errors import BadInput, RunFailed, missing_extra, unknown
from maxinforl.experiments.suite import Resources
from maxinforl.experiments.suite_runs import PlannedRun
from maxinforl.files import make_directory, opened, writing
from maxinforl.training.lock import in_use
from maxinforl.training.store import usable_cores

BAD_INPUT = 2  # the exit code of a run that was refused
RETRIES = 3  # of a run whose Ray worker died
TAIL = 6  # lines of a failed run's log that are printed
PATIENCE = 60.0  # seconds that a run waits for another process to release its directory
THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # environment variables that limit a run to its cores


@dataclass(frozen=True)
class Job:
    """A command, the run directory that it writes, and the log file of its output."""

    name: str
    command: tuple[str, ...]
    directory: Path
    log: Path
    threads: int = 1
    cwd: str = field(default_factory=os.getcwd)


@dataclass(frozen=True)
class Done:
    """How a job ended: the exit code of its command and the last lines it printed."""

    job: Job
    code: int
    tail: str = ""


class Launcher(Protocol):
    """Interface of a launcher: submit jobs, poll for those that ended, list the running ones, stop all."""

    def submit(self, job: Job) -> None: ...

    def poll(self) -> list[Done]: ...

    def running(self) -> set[str]: ...

    def stop(self) -> None: ...


def job_for(planned: PlannedRun, out: Path, threads: int) -> Job:
    """The `maxinforl train --resume` command of a planned run."""
    command = (sys.executable, "-m", "maxinforl", "train", *planned.run.flags)
    command += ("--out", str(planned.directory), "--resume")
    log = out / "logs" / (planned.run.name.replace("/", "_") + ".log")
    return Job(planned.run.name, command, planned.directory, log, threads)


# --- one job --------------------------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Send SIGTERM to the run if its parent dies, so that it saves and exits instead of continuing as an orphan."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def start(job: Job) -> subprocess.Popen[bytes]:
    """Start the job as a process with its number of threads; output goes to its log."""
    make_directory(job.log.parent)
    # XLA sizes its thread pools by NPROC; the same number of threads gives the same results on every launcher.
    threads = dict.fromkeys(THREADS, str(job.threads))
    with writing(job.log), opened(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as log:
        return subprocess.Popen(
            job.command,
            cwd=job.cwd,
            env={**os.environ, **threads},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def ended(job: Job, code: int) -> Done:
    return Done(job, code, "" if code == 0 else tail(job.log))


def tail(log: Path, lines: int = TAIL) -> str:
    """The last non-empty lines of a log; empty if it does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def attempt(job: Job) -> tuple[int, str]:
    """Run the job to its end in a Ray or Slurm worker; first waits for a process that still saves the same run."""
    os.chdir(job.cwd)
    deadline = time.monotonic() + PATIENCE
    while in_use(job.directory) and time.monotonic() < deadline:
        time.sleep(0.2)
    process = start(job)
    try:
        done = ended(job, process.wait())
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    return done.code, done.tail


# --- launchers ------------------------------------------------------------------------------------------------


class Local:
    """A pool of `jobs` processes on this machine."""

    def __init__(self, jobs: int):
        self.jobs = jobs
        self._queue: list[Job] = []
        self._retried: set[str] = set()
        self._active: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def poll(self) -> list[Done]:
        ends = [(job, code) for job, process in self._active.values() if (code := process.poll()) is not None]
        for job, _ in ends:
            del self._active[job.name]
        again = [job for job, code in ends if code == BAD_INPUT and self._taken(job)]
        self._queue += again
        free = [job for job in self._queue if not in_use(job.directory)]
        for job in free[: self.jobs - len(self._active)]:
            self._queue.remove(job)
            self._active[job.name] = (job, start(job))
        return [ended(job, code) for job, code in ends if job not in again]

    def _taken(self, job: Job) -> bool:
        """Whether another process, such as one of a second sweep, has the run or began it first: then wait for it."""
        begun = (job.directory / "config.toml").exists() and job.name not in self._retried
        self._retried.add(job.name)
        return begun or in_use(job.directory)

    def running(self) -> set[str]:
        return set(self._active)

    def stop(self) -> None:
        """Send SIGTERM to every run, so that it saves, and wait for it."""
        self._queue.clear()
        for _, process in self._active.values():
            process.terminate()
        for _, process in self._active.values():
            process.wait()


class Ray:
    """One Ray task per run, on the cluster at `address` or on a local one."""

    def __init__(self, jobs: int, resources: Resources, address: str | None = None):
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "--launcher ray") from error
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 starves runs beside other processes
        address = address or os.environ.get("RAY_ADDRESS")
        local = {} if address else {"num_cpus": jobs * resources.cores, "include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except ConnectionError as error:
            raise RunFailed(f"no Ray cluster answers at {address}: start one, or leave --address out") from error
        self.ray, self._pending = ray, {}
        memory = {} if not address else {"memory": int(resources.memory_gb * 1e9)}
        options = {"num_cpus": resources.cores, "num_gpus": resources.gpus, "max_retries": RETRIES, **memory}
        self._task = ray.remote(**options)(attempt)

    def submit(self, job: Job) -> None:
        self._pending[self._task.remote(job)] = job

    def poll(self) -> list[Done]:
        if not self._pending:
            return []
        ready, _ = self.ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        return [self._done(reference, self._pending.pop(reference)) for reference in ready]

    def _done(self, reference: Any, job: Job) -> Done:
        try:
            return Done(job, *self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            return Done(job, -1, f"{str(error).splitlines()[0]}\n{tail(job.log)}".strip())

    def running(self) -> set[str]:
        """Jobs whose run directory is locked: Ray tells queued from running tasks only in its dashboard."""
        return {job.name for job in self._pending.values() if in_use(job.directory)}

    def stop(self) -> None:
        for reference in self._pending:
            self.ray.cancel(reference, force=False)
        self.ray.wait(list(self._pending), num_returns=len(self._pending), timeout=PATIENCE) if self._pending else None
        self._pending.clear()
        self.ray.shutdown()


class Slurm:
    """One Slurm job per run, through submitit (`cluster="local"` runs the same code on this machine)."""

    def __init__(self, resources: Resources, folder: Path, cluster: str = "slurm"):
        submitit = import_submitit()
        try:
            executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        except RuntimeError as error:
            raise BadInput("this machine has no Slurm (srun is missing): add --dry-run to write the scripts") from error
        asked = slurm_parameters(resources)
        own = {"timeout_min": asked["time"], "cpus_per_task": asked["cpus_per_task"], "mem_gb": resources.memory_gb}
        extra = {f"slurm_{k}": v for k, v in resources.slurm.items()}
        executor.update_parameters(name="maxinforl", gpus_per_node=asked.get("gpus_per_node", 0), **own, **extra)
        self._executor, self._jobs = executor, {}

    def submit(self, job: Job) -> None:
        self._jobs[job.name] = (job, self._executor.submit(attempt, job))

    def poll(self) -> list[Done]:
        names = [name for name, (_, handle) in self._jobs.items() if handle.done()]
        return [self._done(*self._jobs.pop(name)) for name in names]

    def _done(self, job: Job, handle: Any) -> Done:
        error = handle.exception()
        return Done(job, *handle.result()) if error is None else Done(job, -1, tail(job.log) or str(error))

    def running(self) -> set[str]:
        return {name for name, (_, handle) in self._jobs.items() if handle.state.upper() == "RUNNING"}

    def stop(self) -> None:
        for _, handle in self._jobs.values():
            handle.cancel()
        self._jobs.clear()


def import_submitit() -> Any:
    """The submitit module; raises `BadInput` if it is not installed."""
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # else the import closes all existing log handlers
    try:
        import submitit
    except ImportError as error:
        raise missing_extra("slurm", "--launcher slurm") from error
    return submitit


def slurm_parameters(resources: Resources) -> dict[str, Any]:
    """`sbatch` parameters for the resources of one run."""
    asked = {"cpus_per_task": resources.cores, "mem": f"{resources.memory_gb:g}GB", "time": round(resources.hours * 60)}
    return asked | ({"gpus_per_node": max(1, round(resources.gpus))} if resources.gpus else {}) | dict(resources.slurm)


def write_scripts(jobs: Sequence[Job], resources: Resources, folder: Path) -> list[Path]:
    """Write one batch script per job, ready for `sbatch`."""
    import_submitit()
    from submitit.slurm.slurm import _make_sbatch_string

    written = []
    for job in jobs:
        counts = " ".join(f"{name}={job.threads}" for name in THREADS)
        threads = {"setup": [f"export {counts}", f"cd {shlex.quote(job.cwd)}"]}
        asked = {**slurm_parameters(resources), **threads, "job_name": job.name.replace("/", "_")}
        path = make_directory(folder) / f"{job.log.stem}.sh"
        path.write_text(_make_sbatch_string(command=shlex.join(job.command), folder=folder, **asked))
        written.append(path)
    return written


LAUNCHERS = ("local", "ray", "slurm")


def make_launcher(
    name: str, resources: Resources, out: Path, jobs: int | None = None, address: str | None = None
) -> Launcher:
    """Make a launcher.

    Args:
      name: one of `LAUNCHERS`.
      resources: of one run.
      out: the directory of the suite.
      jobs: runs at a time; by default as many as the cores allow.
      address: of a Ray cluster.
    """
    if name not in LAUNCHERS:
        raise unknown("launcher", name, LAUNCHERS)
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs must be at least 1, not {jobs}")
    if address is not None and name != "ray":
        raise BadInput("--address is the address of a Ray cluster: add --launcher ray")
    if resources.alone and name != "local":
        raise BadInput("the runs of this suite are timed one at a time on one machine: use --launcher local")
    room = 1 if resources.alone else jobs or max(1, usable_cores() // resources.cores)
    if name == "slurm":
        return Slurm(resources, out / "slurm")
    return Local(room) if name == "local" else Ray(room, resources, address)
