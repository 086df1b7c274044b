"""Four environments nobody here wrote, from training to a robot; benchmarks/own_tasks.py runs all of them.

Packages of [test] must be there: what is missing fails instead of being skipped.
"""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import own_tasks  # noqa: E402


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", own_tasks.IN_TESTS)
def test_from_training_to_a_robot(name, tmp_path):
    result = own_tasks.check(name, tmp_path, steps=48)
    assert result["loaded"] and result["resumed"]
    assert max(result["numpy"], result["onnx"]) < 1e-5


def test_the_table_is_that_of_the_results():
    page, results = own_tasks.PAGE.read_text(), json.loads(own_tasks.RESULTS.read_text())
    assert own_tasks.filled(page) == page, "run `python benchmarks/own_tasks.py`"
    assert results.keys() == own_tasks.TASKS.keys()
    assert sum("refused" not in r and r["loaded"] and r["resumed"] for r in results.values()) >= 12
    assert all(max(r["numpy"], r["onnx"]) < 1e-5 for r in results.values() if "refused" not in r)


def test_packages_of_the_tests_are_installed():
    extras = (ROOT / "pyproject.toml").read_text()
    for package, module in (("gymnasium-robotics", "gymnasium_robotics"), ("box2d", "Box2D"), ("mujoco", "mujoco")):
        assert package in extras
        __import__(module)
