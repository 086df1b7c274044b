"""`maxinforl inspect`: what it says is what the run did."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import maxinforl
from maxinforl import cli
from maxinforl.errors import BadInput
from maxinforl.experiments import calibration, inspection
from maxinforl.experiments.calibration import Calibration
from maxinforl.experiments.inspection import sparkline
from maxinforl.replay import Replay
from maxinforl.transition import Transition

RESULTS = Path(__file__).parents[1] / "results" / "mountain-car"
TINY = {"base.hidden": (8,), "intrinsic.hidden": (8,)}


def copied(tmp_path: Path, algo: str = "maxinfo-sac") -> Path:
    return Path(shutil.copytree(RESULTS / algo / "seed-0", tmp_path / "run"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_sparkline():
    assert sparkline(np.array([0.0, 1.0, 0.5])) == "▁█▅"
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"
    assert sparkline(np.arange(100.0), width=8) == "▁▂▃▄▅▆▇█"


def test_a_run_without_checkpoints_says_what_is_not_available(capsys):
    assert cli.main(["inspect", str(RESULTS / "maxinfo-sac" / "seed-0")]) == 0
    text = capsys.readouterr().out
    assert "10000 of 10000 steps" in text and "eval_episodes = 10 (preset: 5)" in text
    assert "best 97.0 at step 3000" in text and "α2 tracks its target" in text
    assert "not available" in text and "no warnings" in text


def test_only_differences_are_listed(tmp_path):
    run = copied(tmp_path)
    change(run / "config.toml", "lr = 0.0003", "lr = 0.001")
    listed = inspection.differences(run)
    assert "base.lr = 0.001 (preset: 0.0003)" in listed and not any("gamma" in line for line in listed)


def test_a_plain_base_that_does_not_learn_is_told_to_explore(tmp_path):
    assert "try maxinfo-sac" in inspection.inspect(copied(tmp_path, "sac"))


def test_returns_that_fell_are_told_with_their_step(tmp_path):
    run = copied(tmp_path)
    rows = (run / "eval.csv").read_text().splitlines()
    fallen = [",".join([*row.split(",")[:3], "1.0", *row.split(",")[4:]]) for row in rows[-4:]]
    (run / "eval.csv").write_text("\n".join([*rows[:-4], *fallen]) + "\n")
    assert "returns fell after step 3000, from 97.0 to 1.00" in inspection.inspect(run)


def test_information_gain_that_is_used_up_or_off_its_target_is_told(tmp_path):
    run = copied(tmp_path)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row["explore/info_gain"] *= 0.05
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    text = inspection.inspect(run)
    assert "below a tenth of its peak" in text and "off its target" in text and "α2 rises to close it" in text


def known(disagreement: np.ndarray, error: np.ndarray) -> Calibration:
    rows = np.linspace(0, 1, len(disagreement))
    return Calibration(7, np.stack([rows, 0 * rows], 1), rows[:, None], rows, rows, disagreement, error)


def test_rank_correlation_is_spearmans():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert known(x, np.exp(x)).correlation == pytest.approx(1)
    assert known(x, -(x**3)).correlation == pytest.approx(-1)
    assert known(x, np.array([1.0, 1.0, 2.0, 2.0])).correlation == pytest.approx(0.894427)  # ties share their rank
    assert known(x, np.ones(4)).correlation == known(np.ones(4), x).correlation == 0


def test_calibration_is_judged_by_ranks_and_by_size():
    right = np.linspace(0.1, 1, 100)
    assert not list(inspection.model_warnings(known(right, right)))
    assert "hardly predicts the error" in next(inspection.model_warnings(known(right, right[::-1])))
    assert "10 times its disagreement" in next(inspection.model_warnings(known(right, 10 * right)))
    assert known(right, 2 * right).bins(2) == [
        pytest.approx((0.325, 0.65), abs=0.01),
        pytest.approx((0.775, 1.55), abs=0.01),
    ]


def test_where_the_gain_is_high_is_told_by_dimension():
    text = "\n".join(inspection.uncertain_regions(known(np.ones(100), np.ones(100))))
    assert "observation 0   from 0.964 to 0.996" in text and "98% of the replay's age" in text


ADD = jax.jit(lambda replay, transition: replay.add(transition))


def filled(agent: maxinforl.Agent, steps: int = 60) -> Replay:
    """A replay of random transitions with an end in the middle."""
    generator, width = np.random.default_rng(0), agent.spec.obs[0]
    draw = lambda *shape: generator.normal(size=(1, *shape)).astype(np.float32)
    replay = Replay.create(1, steps + 8, (width,), np.float32, agent.spec.action).begin(draw(width))
    for i in range(steps):
        next_obs, flag = draw(width), lambda value: np.array([value])
        t = Transition(draw(agent.spec.action), draw(), flag(False), flag(i == 30), next_obs, next_obs, flag(True))
        replay = ADD(replay, t)
    return replay


SLOW_ALGOS = [pytest.param(a, marks=pytest.mark.slow) for a in ("eps-maxinfo-curiosity-sac", "maxinfo-rnd-sac")]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["maxinfo-sac", "eipo-sac", *SLOW_ALGOS])
def test_every_strategy_with_a_model_is_evaluated(algo):
    agent = maxinforl.make(algo, "Pendulum-v1", set=TINY)
    found = calibration.evaluate_ensemble(agent, agent.strategy.intrinsic, filled(agent), 60)
    assert found.gain.shape == found.error.shape == (60,) and found.obs.shape == (60, 3)
    assert np.isfinite(found.gain).all() and found.disagreement.min() > 0
    assert 0 <= found.recency.min() <= found.recency.max() <= 1
    assert 3 <= found.high.sum() <= 8  # drawn with replacement


@pytest.mark.slow
def test_a_run_with_a_checkpoint_shows_its_calibration(tmp_path):
    agent = maxinforl.make("maxinfo-sac", "Pendulum-v1", set=TINY, batch_size=8, eval_episodes=0, log_every=10)
    agent.learn(40, out=tmp_path / "run")
    text = inspection.inspect(tmp_path / "run")
    assert "intrinsic reward of 40 replayed transitions" in text and "rank correlation of disagreement" in text
    assert "no evaluation was written" in text


def test_a_directory_of_seeds_is_refused():
    with pytest.raises(BadInput, match=r"name one of them, such as .*seed-0"):
        inspection.inspect(RESULTS / "sac")
    with pytest.raises(BadInput, match="holds no run"):
        inspection.inspect(RESULTS.parent / "figures")


def test_information_gain_is_the_models_score_of_native_actions():
    agent = maxinforl.make("maxinfo-sac", "Pendulum-v1", set=TINY)
    obs, action = np.ones((4, 3), np.float32), np.array([[-2.0], [0.0], [1.0], [2.0]], np.float32)
    expected = jax.jit(agent.strategy.intrinsic.score)(agent.acting_state()[1].model, obs, action / 2)
    np.testing.assert_allclose(agent.information_gain(obs, action), expected, rtol=1e-6)
    with pytest.raises(BadInput, match="no model that can score"):
        maxinforl.make("sac", "Pendulum-v1").information_gain(obs, action)
