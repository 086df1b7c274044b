"""Suites carried out: pools, failures, a killed driver, Ray and Slurm; mostly with jobs that train nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from maxinforl import cli
from maxinforl.errors import BadInput
from maxinforl.experiments import launch, sweep
from maxinforl.experiments.launch import Job, Local, Slurm, make_launcher, slurm_parameters, tail, write_scripts
from maxinforl.experiments.suite import Resources
from maxinforl.experiments.suite_file import parse_suite
from maxinforl.experiments.suite_runs import plan
from maxinforl.training.lock import RunLock, in_use

TINY = {
    "algorithms": ["sac"],
    "environments": ["Pendulum-v1"],
    "seeds": 2,
    "settings": {
        "steps": 200, "batch_size": 8, "eval_every": 50, "eval_episodes": 1, "log_every": 50, "save_every": 50,
        "set": {"base.hidden": [8, 8]},
    },
}  # fmt: skip


def job(folder: Path, name: str, code: str, **more) -> Job:
    (folder / name).mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-c", code, str(folder / name))
    return Job(name, command, folder / name, folder / "logs" / f"{name}.log", **more)


def finish(launcher, count: int, seconds: float = 180.0) -> dict[str, launch.Done]:
    done, deadline = {}, time.monotonic() + seconds
    while len(done) < count and time.monotonic() < deadline:
        done |= {d.job.name: d for d in launcher.poll()}
        time.sleep(0.02)
    return done


def test_a_pool_runs_so_many_at_a_time(tmp_path):
    launcher = Local(2)
    for i in range(5):
        launcher.submit(job(tmp_path, f"j{i}", "import time; time.sleep(0.2)"))
    launcher.poll()
    assert len(launcher.running()) == 2
    assert {d.code for d in finish(launcher, 5).values()} == {0} and not launcher.running()


def test_a_job_gets_its_threads_and_its_log(tmp_path):
    launcher = Local(1)
    launcher.submit(job(tmp_path, "j", "import os, sys; print(os.environ['NPROC']); sys.exit('why')", threads=3))
    done = finish(launcher, 1)["j"]
    assert done.code == 1 and done.tail == "3\nwhy"
    assert tail(tmp_path / "absent.log") == ""


def test_a_directory_in_use_is_waited_for(tmp_path):
    launcher = Local(1)
    launcher.submit(job(tmp_path, "j", "pass"))
    with RunLock(tmp_path / "j"):
        assert in_use(tmp_path / "j") and launcher.poll() == [] and not launcher.running()
    assert not in_use(tmp_path / "j") and finish(launcher, 1)["j"].code == 0


def test_stopping_asks_the_runs_to_save(tmp_path):
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('up', flush=True); time.sleep(60)"
    )
    launcher = Local(1)
    launcher.submit(job(tmp_path, "j", code))
    while not tail(tmp_path / "logs" / "j.log"):
        launcher.poll()
        time.sleep(0.02)
    launcher.stop()
    assert finish(launcher, 1)["j"].code == 75


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_driver_takes_its_runs_with_it(tmp_path):
    driver = (
        "import sys, time; from pathlib import Path; from maxinforl.experiments.launch import Job, start\n"
        "code = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "start(Job('j', (sys.executable, '-c', code), Path('.'), Path(sys.argv[1]))); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver, str(tmp_path / "log")])
    while not tail(tmp_path / "log"):
        time.sleep(0.05)
    child = int(tail(tmp_path / "log"))
    process.kill()
    process.wait()
    assert gone(child)


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# --- a suite of jobs that train nothing -----------------------------------------------------------------------

FAKE = """
import sys, time
from pathlib import Path
out = Path(sys.argv[1])
with (out.parent / "starts").open("a") as file:
    file.write("x")
if "seed-1" in str(out):
    print("it went"); print("wrong here"); sys.exit(3)
if "seed-2" in str(out):
    sys.exit(75)
(out / "eval.csv").write_text("step,env_step,seed,mean_return\\n200,200,0,12.5\\n")
(out / "metrics.jsonl").write_text('{"step": 200, "time/fps": 10.0}\\n')
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A sweep of four runs: one that finishes, one that fails, one that is preempted, one that finishes."""
    monkeypatch.setattr(sweep, "job_for", lambda p, out, threads: job(out, p.run.name, FAKE, threads=threads))
    runs = parse_suite({**TINY, "seeds": 4}, "tiny").runs()
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    return lambda: sweep.Sweep(plan(runs, tmp_path), Local(2), tmp_path, console=console, every=0.02)


def test_a_failed_run_does_not_stop_the_others(fake):
    one = fake()
    assert one.go() == sweep.RUN_FAILED
    assert [row.state for row in one.rows.values()] == ["finished", "failed", "interrupted", "finished"]
    said = one.console.export_text()
    assert "failed: sac/Pendulum-v1/seed-1\n  it went\n  wrong here" in said
    assert "2 finished, 1 failed, 1 interrupted of 4 runs" in said


def test_a_run_that_never_began_was_not_interrupted(fake):
    one = fake()
    poll = one.launcher.poll
    one.launcher.poll = lambda: [*poll(), *(os.kill(os.getpid(), signal.SIGTERM) or ())]
    assert one.go() == sweep.PREEMPTED
    assert [row.state for row in one.rows.values()] == ["interrupted", "interrupted", "waiting", "waiting"]
    assert "2 interrupted, 2 waiting of 4 runs" in one.console.export_text()


def test_the_live_table_tells_state_steps_return_and_time(fake):
    one = fake()
    one.go()
    row = one.rows["sac/Pendulum-v1/seed-0"]
    assert row.progress() == (200, 10.0, 12.5)
    one.console = Console(width=200, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    row.state, row.planned = (
        "running",
        replace(row.planned, run=replace(row.planned.run, settings=replace(row.planned.run.settings, steps=800))),
    )
    one.console.print(one.table())
    text = one.console.export_text()
    assert "200/800" in text and "12.5" in text and "0:01:00" in text and "1 running, 1 failed" in text


def test_what_sweep_refuses(tmp_path, capsys):
    path = tmp_path / "suite.toml"
    path.write_text(tomli_w.dumps(TINY))
    for flags in (["--launcher", "locale"], ["--jobs", "-1"], ["--address", "x"], ["--reuse", str(tmp_path / "no")]):
        assert cli.main(["sweep", str(path), "--out", str(tmp_path / "out"), *flags]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert "did you mean 'local'" in said and "--jobs must be at least 1" in said and "add --launcher ray" in said
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_timed_has_the_machine_to_itself():
    launcher = make_launcher("local", Resources(alone=True), Path(), 8)
    assert isinstance(launcher, Local) and launcher.jobs == 1


# --- Slurm ----------------------------------------------------------------------------------------------------


needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")


@needs_submitit
def test_slurm_scripts_are_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    resources = {"cores": 3, "memory_gb": 5.0, "hours": 2.0, "gpus": 1.0, "slurm": {"partition": "long"}}
    Path("suite.toml").write_text(tomli_w.dumps({**TINY, "resources": resources}))
    assert cli.main(["sweep", "suite.toml", "--launcher", "slurm", "--dry-run", "--out", "out"]) == 0
    scripts = sorted(Path("out/slurm").glob("*.sh"))
    assert [s.stem for s in scripts] == ["sac_Pendulum-v1_seed-0", "sac_Pendulum-v1_seed-1"]
    text = scripts[1].read_text()
    for line in ("--cpus-per-task=3", "--mem=5GB", "--time=120", "--gpus-per-node=1", "--partition=long"):
        assert f"#SBATCH {line}" in text
    assert "export NPROC=3" in text and "-m maxinforl train --algo sac" in text
    assert "--seed 1" in text and "--out out/sac/Pendulum-v1/seed-1 --resume" in text
    subprocess.run(["bash", "-n", str(scripts[1])], check=True)
    assert "wrote 2 scripts" in capsys.readouterr().out


@pytest.mark.slow
@needs_submitit
def test_slurm_jobs_report_how_they_ended(tmp_path):
    if not slurm_here():
        with pytest.raises(BadInput, match="no Slurm"):
            Slurm(Resources(), tmp_path / "slurm")
    launcher = Slurm(Resources(), tmp_path / "slurm", cluster="local")
    launcher.submit(job(tmp_path, "good", "pass"))
    launcher.submit(job(tmp_path, "bad", "import sys; print('oh'); sys.exit(3)"))
    done = finish(launcher, 2)
    assert done["good"].code == 0 and (done["bad"].code, done["bad"].tail) == (3, "oh")
    assert write_scripts([], Resources(), tmp_path) == [] and "partition" not in slurm_parameters(Resources())


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_timed_runs_stay_on_one_machine(name, tmp_path):
    with pytest.raises(BadInput, match="timed one at a time on one machine"):
        make_launcher(name, Resources(alone=True), tmp_path)


def slurm_here() -> bool:
    return subprocess.run(["which", "srun"], capture_output=True).returncode == 0


# --- the real thing -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """One Ray cluster for every test that needs one."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    launcher = launch.Ray(1, Resources())
    yield launcher
    ray.shutdown()


@pytest.mark.slow
def test_a_killed_ray_worker_is_retried(cluster, tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; seen = Path(sys.argv[1]) / 'seen'\n"
        "first = not seen.exists(); print(os.getppid(), flush=True); seen.touch()\n"
        "time.sleep(60 if first else 0)"
    )
    cluster.submit(job(tmp_path, "j", code))
    log = tmp_path / "logs" / "j.log"
    while not tail(log):
        time.sleep(0.05)
    os.kill(int(tail(log)), signal.SIGKILL)
    assert finish(cluster, 1)["j"].code == 0
    assert len(log.read_text().split()) == 2


def sweeping(*flags: str) -> list[str]:
    return [sys.executable, "-m", "maxinforl", "sweep", "suite.toml", "--jobs", "1", *flags]


@pytest.fixture(scope="module")
def killed_locally(tmp_path_factory) -> Path:
    """A suite whose local driver was killed during the first run, and which was then started again."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "suite.toml").write_text(tomli_w.dumps({**TINY, "resources": {"memory_gb": 0.5}}))
    command = sweeping("--out", "out")
    driver = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    first = folder / "out/sac/Pendulum-v1/seed-0"
    saving(first, driver)
    driver.kill()
    driver.wait()
    assert not (first.parent / "seed-1").exists()
    assert subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode == 0
    return folder


@pytest.mark.slow
def test_a_killed_local_driver_finishes_every_run_once(killed_locally):
    out = killed_locally / "out"
    curves = [(out / "sac/Pendulum-v1" / name / "eval.csv").read_text() for name in ("seed-0", "seed-1")]
    assert [curve.count("\n") for curve in curves] == [6, 6] and curves[0] != curves[1]
    assert "resuming" in (out / "logs/sac_Pendulum-v1_seed-0.log").read_text()
    assert "resuming" not in (out / "logs/sac_Pendulum-v1_seed-1.log").read_text()
    assert {p.state for p in plan(parse_suite(TINY, "tiny").runs(), out)} == {"finished"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_ray_runs_survive_their_worker_and_their_driver(cluster, killed_locally, monkeypatch):
    """The worker of the first run is killed, then the driver in the middle of the second, with the worker, which might
    finish before Ray ends it; started again, the suite finishes every run once, with the curves of the local suite,
    whose runs were interrupted elsewhere or not at all."""
    monkeypatch.chdir(killed_locally)
    address = cluster.ray.get_runtime_context().gcs_address
    on_ray = sweeping("--out", "ray", "--launcher", "ray", "--address", address)
    driver = subprocess.Popen(on_ray, stdout=subprocess.DEVNULL)
    first, second = (Path("ray/sac/Pendulum-v1", name) for name in ("seed-0", "seed-1"))
    os.kill(parent(saving(first, driver)), signal.SIGKILL)
    run = saving(second, driver)
    worker = parent(run)
    driver.kill()
    os.kill(worker, signal.SIGKILL)
    driver.wait()
    assert gone(run, 60.0)
    assert subprocess.run(on_ray, stdout=subprocess.DEVNULL).returncode == 0
    for run in (first, second):
        assert (run / "eval.csv").read_text() == Path("out", *run.parts[1:], "eval.csv").read_text()
        assert "resuming" in Path("ray/logs", f"sac_Pendulum-v1_{run.name}.log").read_text()
    assert {p.state for p in plan(parse_suite(TINY, "tiny").runs(), Path("ray"))} == {"finished"}


def saving(run: Path, driver: subprocess.Popen, seconds: float = 180.0) -> int:
    """The process that trains in a directory, once it has written a checkpoint."""
    deadline = time.monotonic() + seconds
    while not list(run.glob("checkpoints/step-*")) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return json.loads((run / "lock.json").read_text())["pid"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
