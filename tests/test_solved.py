"""The tables of a suite whose tasks have thresholds: who solved them, when, and who was not run."""

import gymnasium as gym
import numpy as np
import pytest

import maxinforl
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
    assert hits([run_of([0, 0, 95], ended=True), run_of([0, 0, 0, 0, 95], ended=True)], 90).reached.all()
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


class Rocker:
    """Pushes the way the car rolls, which solves the mountain car without learning."""

    def __init__(self, env: gym.Env, seed: int):
        self.learned, self.seed = 0, seed

    def learn(self, steps: int) -> None:
        self.learned += steps

    def predict(self, obs: np.ndarray, *, deterministic: bool) -> tuple[np.ndarray, None]:
        assert deterministic and obs.ndim == 2
        return np.where(obs[:, 1:] < 0, -1.0, 1.0) * min(0.8, self.learned / 2500), None


def test_any_agent_is_evaluated_on_the_suites_grid(tmp_path):
    made = []
    maker = lambda env, seed: made.append(Rocker(env, seed)) or made[-1]
    again = [maxinforl.benchmark(maker, "rocker", tmp_path, tasks=["mountain car"], seeds=[3]) for _ in range(2)]
    assert [(rocker.seed, rocker.learned) for rocker in made] == [(3, 10_000)]  # what was run is not run again
    (run,) = again[1]
    assert (run.algo, run.env, run.seed, run.returns.step.tolist()) == ("rocker", "mountain car", 3, STEPS.tolist())
    assert run.returns.value[0] > -1 and (run.returns.value[1:] > 90).all()
    (tmp_path / "other").symlink_to(tmp_path / "rocker")
    with pytest.raises(BadInput, match="choose another out"):
        maxinforl.benchmark(maker, "other", tmp_path, tasks=["mountain car"], seeds=[3])
    row = solved_table("mountain car", 90, [run], {"rocker": 1}).rows[0]
    assert row[2] == "1" and row[-1] == "3: 2,500"


def test_a_suite_without_thresholds_is_no_benchmark(tmp_path):
    with pytest.raises(BadInput, match="choose hard-exploration"):
        maxinforl.benchmark(Rocker, "rocker", tmp_path, suite="phase-plot")
