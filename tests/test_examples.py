"""Every example runs, at a small scale, and none is longer than a page."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy_helpers import made, only_numpy
from maxinforl import deploy

EXAMPLES = Path(__file__).parents[1] / "examples"
# What is appended to the command line to make an example quick, and what it must print.
RUNS = {
    "custom_environment.py": (["30"], "mean length 200"),
    "custom_bonus.py": (["30"], "power=0.5"),
    "new_base.py": (["30"], "maxinfo-sac  return"),
    "resuming.py": (["60"], "exit code 75"),
    "sweep.py": (["5", "1"], "report.html"),
    "pixels.py": (["4", "15"], "observations of shape (15, 15, 9)"),
    "evaluate_like_sb3.py": (["30"], "return -"),
    "demonstrations.py": (["30", "2"], "success 100%"),
}
ELSEWHERE = {
    "benchmark_sbx.py": "needs PyTorch, too; tests/test_solved.py runs another agent",
    "evaluate_with_sb3.py": "needs PyTorch, which is several gigabytes",
    "robot.py": "has a test of its own below",
}


def test_every_example_is_run_or_says_why_not():
    assert {p.name for p in EXAMPLES.glob("*.py")} == {*RUNS, *ELSEWHERE}
    for name in ("evaluate_with_sb3.py", "benchmark_sbx.py"):
        assert "Not run in CI" in (EXAMPLES / name).read_text()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_fit_on_a_page(path):
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    arguments, said = RUNS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert said in capsys.readouterr().out


def test_the_robot_needs_nothing_but_numpy_and_acts_as_predict_does(tmp_path):
    agent = made("sac", "Pendulum-v1")
    deploy.export(agent, "numpy", tmp_path / "bundle")
    start = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_path(sys.argv.pop(1), None, '__main__')"
    arguments = [only_numpy(tmp_path / "site"), EXAMPLES / "robot.py", tmp_path / "bundle", 3]
    command = [sys.executable, "-I", "-S", "-c", start, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 steps at 20 Hz" in done.stdout
    state = np.zeros(3, np.float32)
    for _ in range(3):
        action, _ = agent.predict(state, deterministic=True)
        state = np.tanh(state + 0.1 * float(action[0])).astype(np.float32)
    assert float(done.stdout.split("[")[1].split("]")[0]) == pytest.approx(float(action[0]), abs=1e-5)


@pytest.mark.slow
def test_the_notebook_runs_top_to_bottom(monkeypatch, capsys):
    """Its cells hold plain Python, so they are run as one script, without a kernel."""
    monkeypatch.setenv("TOUR_STEPS", "12")
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # what is committed stays small
            exec("".join(cell["source"]), names)
    assert "maxinfo-sac  return of the last evaluation" in capsys.readouterr().out
    assert names["before"].shape == (60, 60) and not np.array_equal(names["before"], names["after"])
