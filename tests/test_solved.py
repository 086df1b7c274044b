"""The tables of a suite whose tasks have thresholds: who solved them, when, and who was not run."""

import numpy as np
import pytest

from maxinforl.errors import BadInput
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.experiments.reproduce import load_figure, parse_figure
from maxinforl.experiments.solved import hits, late_return, markdown, solved_table

STEPS = np.array([0.0, 2500.0, 5000.0, 7500.0, 10000.0])


def run_of(returns: list[float], algo: str = "sac", seed: int = 0, ended: bool = False) -> RunLogs:
    steps = STEPS[: len(returns)]
    series = Series(steps, 2 * steps, np.array(returns, float))
    return RunLogs("x", algo, "car", seed, 10_000, "", {}, {}, evaluation={"mean_return": series}, ended=ended)


def test_a_task_is_solved_at_the_first_of_two_evaluations_in_a_row():
    curves = [[0, 95, 0, 95, 95], [0, 95, 0, 95, 0], [0, 90, 90, 0, 0], [0, 0, 0]]
    found = hits([run_of(c) for c in curves], 90)
    assert found.step.tolist() == [7500, 10000, 2500, 5000]  # agent steps; the last step where there is no such pair
    assert found.reached.tolist() == [True, False, True, False]


def test_a_run_that_stop_at_ended_has_solved_its_task():
    assert hits([run_of([0, 0, 95], ended=True)], 90).reached.all()
    assert not hits([run_of([0, 0, 95])], 90).reached.any()


def test_the_return_of_the_last_third_is_of_finished_runs():
    assert late_return(run_of([9, 9, 9, 1, 3])) == 2
    assert late_return(run_of([9, 9, 3], ended=True)) == 3
    assert np.isnan(late_return(run_of([9, 9, 3])))


def test_no_algorithm_of_the_suite_is_left_out_of_the_table():
    runs = [run_of([0, 0, 95, 95, 95], "sac", seed) for seed in (1, 0)] + [run_of([0] * 5, "redq")]
    rows = solved_table("car", 90, runs, {"sac": 5, "redq": 1, "oac": 5}).rows
    assert rows[0] == ["sac", "2 of 5", "2", "5,000 [5,000, 5,000]", "95.0 ± 0", "0: 5,000, 1: 5,000"]
    assert rows[1] == ["redq", "1 of 1", "0", "∞", "0", "0: –"]
    assert rows[2][:3] == ["oac", "0 of 5", "not run"]
    text = markdown(solved_table("car", 90, runs, {"a|b": 5}))
    assert "a\\|b" in text and len(text.splitlines()) == 3


def test_thresholds_are_of_the_suites_tasks():
    assert load_figure("hard-exploration").thresholds["mountain car"] == 90
    table = {"algorithms": ["sac"], "environments": ["Pendulum-v1"], "figure": {"kind": "curves"}}
    table["figure"]["thresholds"] = {"Pendulum-v2": 3}
    with pytest.raises(BadInput, match="did you mean 'Pendulum-v1'"):
        parse_figure("mine", table)
