"""Claims as data: what confirms, contradicts or leaves them open; the figures that ship; what `reproduce` writes."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from maxinforl import cli
from maxinforl.errors import BadInput
from maxinforl.experiments import reproduce, theory
from maxinforl.experiments import statistics as st
from maxinforl.experiments.claims import Claim, judge, parse_claims
from maxinforl.experiments.cost import cost, dimensions
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.experiments.suite_file import parse_suite, read_suite
from maxinforl.experiments.verdicts import CONFIRMED, CONTRADICTED, NOT_RUN, NOT_SHOWN, all_of

RESULTS = Path(__file__).parent.parent / "results"
ENVS = ["dmc/a", "dmc/b"]


def run(algo, env, seed, level, steps=100, metrics=None, upto=1.0):
    """A run whose return is 0 in the first half and `level` in the second."""
    at = np.linspace(0, steps * upto, 21)
    value = np.where(at >= steps / 2, float(level), 0.0)
    logged = {name: Series(at, at, np.full(len(at), float(v))) for name, v in (metrics or {}).items()}
    return RunLogs(
        Path(f"{algo}-{env}-{seed}"), algo, env, seed, steps, "", {}, {}, logged, {"mean_return": Series(at, at, value)}
    )


def runs(levels, seeds=5, spread=10.0, **extra):
    """{(algo, env): level}, seeds spread evenly around each level."""
    noise = np.linspace(-spread, spread, seeds)
    return [run(a, e, s, level + noise[s], **extra) for (a, e), level in levels.items() for s in range(seeds)]


ABOVE = Claim("ours is above", "ours", "above", against=("base",))


@pytest.mark.parametrize(
    ("ours", "base", "seeds", "expected"),
    [(500, 300, 5, CONFIRMED), (300, 500, 5, CONTRADICTED), (305, 300, 5, NOT_SHOWN), (500, 300, 4, NOT_SHOWN)],
)
def test_the_interval_decides(ours, base, seeds, expected):
    (verdict,) = judge([ABOVE], runs({("ours", "dmc/a"): ours, ("base", "dmc/a"): base}, seeds), ["dmc/a"], "")
    assert verdict["verdict"] == expected
    numbers = verdict["numbers"]["against base"]
    assert numbers["difference"] == pytest.approx((ours - base) / 1000) and numbers["seeds"] == seeds
    assert numbers["low"] < numbers["difference"] < numbers["high"]
    assert numbers["means"] == {"ours": ours, "base": base}


def test_below_mirrors_above_and_the_threshold_counts():
    data = runs({("ours", "dmc/a"): 500, ("base", "dmc/a"): 300})
    rule = lambda **changes: judge([replace(ABOVE, **changes)], data, ["dmc/a"], "")[0]["verdict"]
    assert rule(rule="below") == CONTRADICTED
    assert rule(threshold=0.1) == CONFIRMED and rule(threshold=0.2) == NOT_SHOWN and rule(threshold=0.3) == CONTRADICTED
    assert rule(rule="below", threshold=0.3) == CONFIRMED


@pytest.mark.parametrize(
    ("ours", "spread", "expected"),
    [
        (300, 10.0, CONFIRMED),  # as good
        (400, 10.0, CONFIRMED),  # better
        (275, 5.0, NOT_SHOWN),  # within the margin, and surely behind
        (290, 100.0, NOT_SHOWN),  # too wide
        (200, 10.0, CONTRADICTED),
    ],
)
def test_tied_is_not_behind(ours, spread, expected):
    claim = replace(ABOVE, rule="not below", threshold=-0.05)
    data = runs({("ours", "dmc/a"): ours, ("base", "dmc/a"): 300}, spread=spread)
    assert judge([claim], data, ["dmc/a"], "")[0]["verdict"] == expected


def test_groups_may_be_compared_by_metrics_of_their_own():
    claim = Claim("a's x is below b's y", "a", "below", statistic="x", against=("b",), other_statistic="y")
    data = runs({("a", "dmc/a"): 0}, metrics={"x": 0.2}) + runs({("b", "dmc/a"): 0}, metrics={"y": 0.5})
    (verdict,) = judge([claim], data, ["dmc/a"], "")
    assert verdict["verdict"] == CONFIRMED and verdict["numbers"]["against b"]["means"] == {"a": 0.2, "b": 0.5}
    assert "x of a, mean over 90% to 100% of training, less y of b" in verdict["numbers"]["rule"]


def test_training_too_short_to_decide_decides_nothing():
    data = runs({("ours", "dmc/a"): 500, ("base", "dmc/a"): 300}, steps=100)
    verdict = lambda least: judge([replace(ABOVE, least=least)], data, ["dmc/a"], "")[0]["verdict"]
    assert verdict(100) == CONFIRMED and verdict(101) == NOT_RUN


def test_windows_choose_the_part_of_training():
    early, late = replace(ABOVE, window=(0.0, 0.4)), replace(ABOVE, window=(0.9, 1.0))
    data = runs({("ours", "dmc/a"): 500, ("base", "dmc/a"): 300})
    found = [v["numbers"]["against base"]["difference"] for v in judge([early, late], data, ["dmc/a"], "")]
    assert found == [0.0, pytest.approx(0.2)]


def test_a_run_that_stopped_early_has_no_final_score():
    data = runs({("ours", "dmc/a"): 500}, upto=0.8) + runs({("base", "dmc/a"): 300})
    assert judge([ABOVE], data, ["dmc/a"], "")[0]["verdict"] == NOT_RUN
    assert judge([replace(ABOVE, window=(0.0, 1.0))], data, ["dmc/a"], "")[0]["verdict"] == NOT_RUN
    assert judge([replace(ABOVE, window=(0.0, 0.8))], data, ["dmc/a"], "")[0]["verdict"] == CONFIRMED


def test_a_run_that_stop_at_ended_keeps_its_last_return():
    early = [replace(r, ended=True) for r in runs({("ours", "dmc/a"): 500}, upto=0.6)]
    (verdict,) = judge([ABOVE], early + runs({("base", "dmc/a"): 300}), ["dmc/a"], "")
    assert verdict["verdict"] == CONFIRMED and verdict["numbers"]["against base"]["means"]["ours"] == 500
    half = replace(ABOVE, window=(0.0, 1.0))  # as many points per step before the end as after it
    (verdict,) = judge([half], early + runs({("base", "dmc/a"): 300}), ["dmc/a"], "")
    assert verdict["numbers"]["against base"]["means"]["ours"] == pytest.approx(250, abs=10)


def test_against_several_all_must_hold():
    claim = replace(ABOVE, against=("base", "other"))
    levels = {("ours", "dmc/a"): 500, ("base", "dmc/a"): 300, ("other", "dmc/a"): 400}
    verdict = lambda levels: judge([claim], runs(levels), ["dmc/a"], "")[0]["verdict"]
    assert verdict(levels) == CONFIRMED
    assert verdict(levels | {("other", "dmc/a"): 500}) == NOT_SHOWN
    assert verdict(levels | {("other", "dmc/a"): 600}) == CONTRADICTED
    del levels["other", "dmc/a"]
    assert verdict(levels) == NOT_RUN
    assert verdict(levels | {("base", "dmc/a"): 600}) == CONTRADICTED
    assert all_of([CONFIRMED, NOT_SHOWN, NOT_RUN]) == NOT_RUN and all_of([]) == CONFIRMED


def test_each_environment_has_a_verdict_of_its_own():
    data = runs({("ours", "dmc/a"): 500, ("base", "dmc/a"): 300})
    found = judge([ABOVE], data, ENVS, "half the steps")
    assert [v["claim"] for v in found] == ["ours is above [dmc/a]", "ours is above [dmc/b]"]
    assert [v["verdict"] for v in found] == [CONFIRMED, NOT_RUN]
    assert found[0]["numbers"]["reduced"] == "half the steps" and "reduced" not in found[1]["numbers"]


def test_some_environment_suffices_but_costs_width():
    claim, cells = replace(ABOVE, over="some"), [(a, e) for a in ("ours", "base") for e in ENVS]
    verdict = lambda of: judge([claim], runs(dict(zip(cells, of))), ENVS, "")[0]
    assert verdict(of=[500, 200, 300, 500])["verdict"] == CONFIRMED
    assert verdict(of=[300, 200, 500, 500])["verdict"] == CONTRADICTED
    assert verdict(of=[300, 500, 500, 500])["verdict"] == NOT_SHOWN
    one = judge([ABOVE], runs({("ours", "dmc/a"): 500, ("base", "dmc/a"): 300}), ["dmc/a"], "")[0]["numbers"]
    wide = verdict(of=[500, 200, 300, 500])["numbers"]["against base"]["dmc/a"]
    assert wide["low"] < one["against base"]["low"]


def test_the_mean_over_environments_needs_all_of_them():
    claim = replace(ABOVE, over="mean")
    levels = {("ours", "dmc/a"): 500, ("base", "dmc/a"): 300, ("ours", "dmc/b"): 400, ("base", "dmc/b"): 500}
    (verdict,) = judge([claim], runs(levels), ENVS, "")
    assert verdict["verdict"] == CONFIRMED
    assert verdict["numbers"]["against base"]["difference"] == pytest.approx(0.05)
    del levels["base", "dmc/b"]
    assert judge([claim], runs(levels), ENVS, "")[0]["verdict"] == NOT_RUN


def test_metrics_ratios_and_plain_values():
    fast, slow = {"time/fps": 100, "explore/alpha2": 0.5}, {"time/fps": 50, "explore/alpha2": 0.01}
    data = runs({("ours", "dmc/a"): 5}, metrics=slow) + runs({("base", "dmc/a"): 5}, metrics=fast)
    ratio = replace(ABOVE, statistic="ms per step", ratio=True, rule="below", threshold=1.44)
    (verdict,) = judge([ratio], data, ["dmc/a"], "")
    assert verdict["verdict"] == CONTRADICTED and verdict["numbers"]["against base"]["ratio"] == pytest.approx(2)
    value = replace(ABOVE, against=(), statistic="explore/alpha2", threshold=0.1)
    assert judge([value], data, ["dmc/a"], "")[0]["verdict"] == CONTRADICTED
    assert judge([replace(value, rule="below")], data, ["dmc/a"], "")[0]["numbers"]["ours"]["value"] == 0.01
    absent = replace(value, statistic="explore/nothing")
    assert judge([absent], data, ["dmc/a"], "")[0]["verdict"] == NOT_RUN


def test_coverage_counts_cells_of_the_common_box(tmp_path):
    data = []
    for algo, width in (("ours", 1.0), ("base", 0.2)):
        for seed in range(5):
            folder = tmp_path / f"{algo}-{seed}"
            folder.mkdir()
            place = np.random.default_rng(seed).uniform(0, width + seed / 100, (400, 2))
            np.savez(folder / "states.npz", step=np.arange(1, 401) / 4, obs=place)
            data.append(replace(run(algo, "dmc/a", seed, 0), path=folder))
    (verdict,) = judge([replace(ABOVE, statistic="coverage", window=(0.0, 1.0))], data, ["dmc/a"], "")
    means = verdict["numbers"]["against base"]["means"]
    assert verdict["verdict"] == CONFIRMED and means["ours"] > 4 * means["base"]


BAD = [
    ({"rule": "abov"}, "did you mean 'above'"),
    ({"group": "our"}, "did you mean 'ours'"),
    ({"against": ["bass"]}, "did you mean 'base'"),
    ({"over": "means"}, "did you mean 'mean'"),
    ({"claims": "x"}, "did you mean 'claim'"),
    ({"environments": ["dmc/c*"]}, "unknown environment in"),
    ({"window": [0.5]}, "two shares"),
    ({"ratio": True}, "a threshold above 0"),
    ({"threshold": "high"}, "claims.threshold must be a finite number"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said[-16:] for _, said in BAD])
def test_claims_that_cannot_be_judged_are_refused(change, said):
    table = {"claim": "c", "group": "ours", "against": ["base"], "rule": "above"}
    with pytest.raises(BadInput) as error:
        parse_claims([table | change], ["ours", "base"], ENVS)
    assert said in str(error.value)


def test_contrast_is_welch_and_sums_of_means():
    x, y = np.array([1.0, 2.0, 4.0]), np.array([0.0, 5.0])
    assert st.contrast([(1.0, x), (-1.0, y)]) == st.difference(x, y)
    one = st.contrast([(1.0, x)])  # mean 7/3, se 0.8819, t(2) = 4.3027
    assert (one.value, one.high - one.value) == (pytest.approx(7 / 3), pytest.approx(4.3027 * 0.8819, rel=1e-3))
    half = st.contrast([(0.5, x), (0.5, x)])
    assert half.value == pytest.approx(7 / 3) and half.high - half.value == pytest.approx(2.7764 * 0.6236, rel=1e-3)


# --- figures --------------------------------------------------------------------------------------------------

FIGURES = "summary state-based humanoid-bench phase-plot action-cost visual-dmc humanoid-visual lambda-evolution redq "
FIGURES += (
    "drqv2-noise humanoid-no-noise rnd eps eps-action-cost eps-curiosity switching-frequency oac drm compute-cost "
    "hard-exploration planet-100k"
)


def test_every_figure_is_there():
    assert set(reproduce.figure_names()) == {*FIGURES.split(), *theory.REPRODUCE}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES.split())
def test_a_figure_is_whole(name):
    found = reproduce.load_figure(name)
    assert found.claims and found.suite.title and len(found.suite.seeds) == 5
    labels = {r.label for r in found.suite.runs()}
    for claim in found.claims:
        assert {claim.group, *claim.against} <= labels
    small = reproduce.scaled(found.suite, 0.1)
    assert len(small.seeds) == 3 and "0.1 of the paper's steps" in reproduce.reduction(found.suite, small)
    assert small.runs()[0].settings.steps == round(0.1 * found.suite.runs()[0].settings.steps)


def test_figures_share_runs():
    prints = lambda name: {r.fingerprint for r in reproduce.load_figure(name).suite.runs()}
    assert prints("summary") == prints("state-based")
    assert len(prints("rnd") & prints("action-cost")) == 2 * len(prints("rnd")) // 3
    assert {r.fingerprint for r in read_suite(RESULTS / "planet" / "suite.toml").runs()} < prints("planet-100k")


def test_published_runs_are_judged_without_running_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "figure"
    flags = [
        "--algos",
        "sac,maxinfo-sac",
        "--envs",
        "MountainCar*",
        "--reuse",
        str(RESULTS / "mountain-car"),
        "--out",
        str(out),
    ]
    flags += ["--set", "steps=10000", "--set", "eval_every=1000", "--set", "eval_episodes=10"]
    assert cli.main(["reproduce", "state-based", *flags, "--set", "intrinsic.hidden=[64,64]"]) == 0
    verdicts = json.loads((out / "verdicts.json").read_text())
    assert all(set(v) == {"claim", "verdict", "numbers"} for v in verdicts)
    decided = {v["claim"]: v for v in verdicts if v["verdict"] != NOT_RUN}
    (verdict,) = decided.values()
    assert verdict["verdict"] == CONFIRMED and "2 of 6 algorithms" in verdict["numbers"]["reduced"]
    assert "steps=10000" in verdict["numbers"]["reduced"]
    assert {p.name for p in out.iterdir()} == {
        "verdicts.json",
        "returns.csv",
        "figure.csv",
        "figure.png",
        "figure.pdf",
        "README.md",
    }
    assert "10 of 10 runs, 10 of them reused" in (out / "README.md").read_text()
    assert (
        "confirmed  (not claimed by the paper on each task) MaxInfoSAC ends above SAC [MountainCarContinuous-v0]"
        in capsys.readouterr().out
    )
    assert cli.main(["reproduce", "state-based", *flags, "--jobs", "0"]) == 0  # none fit: everything is not run
    assert {v["verdict"] for v in json.loads((out / "verdicts.json").read_text())} == {NOT_RUN}


def test_what_reproduce_refuses(tmp_path, capsys):
    for flags in (
        ["stat-based"],
        ["state-based", "--scale", "2"],
        ["bandit", "--envs", "x"],
        ["rnd", "--algos", "sax"],
    ):
        assert cli.main(["reproduce", *flags, "--out", str(tmp_path / "out")]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert "did you mean 'state-based'" in said and "at most 1, not 2" in said and "--envs has no meaning" in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_hours_and_memory(tmp_path, capsys):
    flags = ["--envs", "pendulum-hanging", "--algos", "sac", "--dry-run", "--out", str(tmp_path / "out")]
    assert cli.main(["reproduce", "compute-cost", *flags]) == 0
    said = capsys.readouterr().out
    assert "sac on pendulum-hanging: 5 × 100 000 steps, 0.9 h, replay 0.00 GB" in said and "5 runs: 0.9 h" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_dry_run_knows_environments_with_nested_arguments_and_names_with_commas(tmp_path, capsys):
    chosen = ["--envs", "maze,mountain car, action cost", "--algos", "sac,maxinfo-sac, paired weight,sac, pink noise"]
    assert cli.main(["reproduce", "hard-exploration", *chosen, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "sac on maze: 5 ×" in said and "sac, pink noise on mountain car, action cost: 5 ×" in said
    assert "20 runs:" in said  # the paired weight has no cell on these two


def test_cost_counts_what_an_update_multiplies():
    suite = parse_suite({"algorithms": ["sac"], "environments": ["Pendulum-v1"], "settings": {"steps": 100_000}}, "x")
    (small,) = {cost(r) for r in suite.runs()}
    assert small.hours == pytest.approx(100_000 * 6.7e-3 / 3600, rel=0.05)  # docs/performance.md
    pixels = replace(
        suite, environments={"pixels/Pendulum-v1": {"env": "pixels/Pendulum-v1"}}, algorithms={"drq": {"algo": "drq"}}
    )
    assert cost(pixels.runs()[0]).memory > 100_000 * 84 * 84 * 3


def test_dimensions_take_arguments_that_do_not_hash():
    gym.register("Mapped-v0", lambda maze, render_mode=None: gym.make("Pendulum-v1"))
    assert dimensions("Mapped-v0", (("maze", [[1, 0], [0, 1]]),)) == ((3,), 1)
