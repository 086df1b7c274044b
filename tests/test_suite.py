"""Suite files to runs: the product, what overrides what, what is refused, and how finished runs are recognised."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from maxinforl import cli
from maxinforl.config import to_plain
from maxinforl.errors import BadInput
from maxinforl.experiments.reproduce import gather
from maxinforl.experiments.suite import Suite
from maxinforl.experiments.suite_file import parse_suite, read_suite
from maxinforl.experiments.suite_runs import as_flags, fingerprint, plan
from maxinforl.settings import Settings, resolve, settings_table
from maxinforl.training.directory import finished, logged_steps
from maxinforl.training.log import EVAL_COLUMNS

BASE = {"algorithms": ["sac", "maxinfo-sac"], "environments": ["Pendulum-v1", "dmc/walker-run"], "seeds": 3}
RESULTS = Path(__file__).parent.parent / "results"


def parse(**changes) -> Suite:
    return parse_suite(BASE | changes, "test")


def write_run(folder: Path, settings: Settings, upto: int | None = None) -> Path:
    """What a run leaves behind, without training one."""
    settings, agent = resolve(settings)
    folder.mkdir(parents=True)
    table = {"format": 1, "algo": "sac", "env": settings.env, "seed": settings.seed, "steps": settings.steps}
    spaces = {"observation_shape": [3], "observation_dtype": "float32", "action_low": [-2.0], "action_high": [2.0]}
    table |= {"spaces": spaces, "settings": settings_table(settings), "agent": to_plain(agent)}
    (folder / "config.toml").write_text(tomli_w.dumps(table))
    last = settings.steps if upto is None else upto
    (folder / "eval.csv").write_text(f"step,env_step,seed,mean_return\n0,0,0,1.0\n{last},{last},0,2.0\n")
    return folder


def test_the_product_seed_by_seed():
    runs = parse().runs()
    assert len(runs) == 12 and len({r.fingerprint for r in runs}) == 12
    assert [r.settings.seed for r in runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert runs[3].name == "maxinfo-sac/dmc-walker-run/seed-0"


def test_later_tables_win_and_pairs_are_merged():
    suite = parse(
        settings={"steps": 100, "set": {"base.lr": 1e-3, "base.tau": 0.1}},
        environments={"Pendulum-v1": {"steps": 200}, "costly": {"env": "Pendulum-v1", "action_cost": 0.5}},
        overrides={"fast": {"set": {"base.lr": 1e-2}}, "slow": {}},
        cells=[
            {"algorithms": ["maxinfo-*"], "environments": ["costly"], "steps": 300},
            {"algorithms": ["sac"], "overrides": ["slow"], "skip": True},
        ],
    )
    runs = {(r.algorithm, r.environment, r.override): r.settings for r in suite.runs() if r.settings.seed == 0}
    assert len(runs) == 6
    assert runs["sac", "Pendulum-v1", "fast"].steps == 200
    assert runs["sac", "costly", "fast"].steps == 100 and runs["sac", "costly", "fast"].action_cost == 0.5
    assert runs["maxinfo-sac", "costly", "slow"].steps == 300
    assert dict(runs["sac", "costly", "fast"].set) == {"base.lr": 1e-2, "base.tau": 0.1}


def test_a_named_algorithm_may_be_composed_or_changed():
    suite = parse(algorithms={"mine": {"base": "redq", "explore": "maxinfo"}, "sac": {}})
    made = {r.algorithm: r.resolved[1] for r in suite.runs()}
    assert made["mine"].base.update_ratio == 20 and made["sac"].base.update_ratio == 1


def test_scale_restriction_and_changes():
    suite = replace(parse(settings={"steps": 1000, "eval_every": 100}), scale=0.1)
    part = suite.restricted(["maxinfo-*"], ["Pendulum-v1"]).changed([("eval_every", 7), ("base.lr", 1e-3)])
    (run,) = {replace(r.settings, seed=0) for r in part.runs()}
    assert (run.steps, run.eval_every, run.algo, run.set) == (100, 7, "maxinfo-sac", (("base.lr", 1e-3),))
    other = parse(environments=["pendulum-hanging"]).changed([("env_arg.time_limit_is_terminal", True)])
    assert other.runs()[0].settings.env_arg == (("time_limit_is_terminal", True),)


def test_a_name_with_a_comma_is_one_name():
    both = {"sac": {}, "sac, pink noise": {"algo": "sac", "action_noise": "pink"}, "redq": {}}
    suite = parse(algorithms=both)
    assert list(suite.restricted(["sac", " pink noise"]).algorithms) == ["sac, pink noise"]
    assert list(suite.restricted(["sac", "redq"]).algorithms) == ["sac", "redq"]
    with pytest.raises(BadInput, match="algorithm of this suite"):
        suite.restricted(["redq", " pink noise"])


def test_a_change_of_a_part_is_for_those_that_have_it():
    suite = parse(algorithms=["sac", "maxinfo-sac"])
    made = {r.algorithm: r.resolved[1] for r in suite.changed([("intrinsic.hidden", (8,)), ("base.lr", 1e-3)]).runs()}
    assert made["maxinfo-sac"].intrinsic.hidden == (8,) and {agent.base.lr for agent in made.values()} == {1e-3}
    for typo, meant in (("intrinsic.hiden", "intrinsic.hidden"), ("intrinsik.hidden", "intrinsic")):
        with pytest.raises(BadInput, match=meant):
            suite.changed([(typo, (8,))]).runs()
    with pytest.raises(BadInput, match=r"intrinsic\.hidden"):
        suite.restricted(["sac"]).changed([("intrinsic.hidden", (8,))]).runs()


REFUSED = [
    ({"algoritms": []}, "did you mean 'algorithms'"),
    ({"algorithms": ["maxinfo-sax"]}, "did you mean 'maxinfo-sac'"),
    ({"environments": ["dmc/walker-runn"]}, "did you mean 'dmc/walker-run'"),
    ({"environments": ["Pendulum-v11"]}, "did you mean 'Pendulum-v1'"),
    ({"environments": []}, "the product is empty"),
    ({"algorithms": {}}, "the product is empty"),
    ({"seeds": []}, "'seeds' must be"),
    ({"seeds": 0}, "'seeds' must be"),
    ({"seeds": [1, 1]}, "'seeds' must be"),
    ({"seeds": 10**15}, "'seeds' is 1000000000000000; at most 100000"),
    ({"seeds": 2**63}, "at most 100000 are allowed"),
    ({"seeds": 50_000}, "the product of the suite 'test' has 200000 runs"),
    ({"seeds": [2**32]}, "seed must be at most"),
    ({"settings": {"stepz": 1}}, "did you mean 'steps'"),
    ({"settings": {"seed": 1}}, "write 'seeds' at the top"),
    ({"settings": {"steps": "many"}}, "steps must be a whole number"),
    ({"settings": {"set": {"base.lrr": 1.0}}}, "did you mean 'base.lr'"),
    ({"cells": [{"algorithms": ["redq"], "steps": 1}]}, "unknown algorithm in [[cells]] 'redq'"),
    ({"cells": [{"skip": True}]}, "leaves nothing"),
    ({"cells": {"steps": 1}}, "[[cells]]"),
    ({"overrides": {"a": {}, "b": {}}}, "are the same run"),
    ({"overrides": {"a b": {"steps": 5}, "a-b": {"steps": 6}}}, "give them names that differ"),
    ({"resources": {"core": 1}}, "did you mean 'cores'"),
    ({"resources": {"cores": 0}}, "at least one core"),
    ({"resources": {"cores": "two"}}, "resources.cores must be a whole number"),
    ({"title": 3}, "'title' must be text"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[said[:24] for _, said in REFUSED])
def test_what_cannot_work_is_refused_in_a_sentence(change, said):
    with pytest.raises(BadInput) as error:
        parse(**change).runs()
    assert said in str(error.value) and "\n" not in str(error.value)


def test_files_and_restrictions_that_do_not_fit(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_suite(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("algorithms = [")
    with pytest.raises(BadInput, match="not valid TOML"):
        read_suite(tmp_path / "bad.toml")
    with pytest.raises(BadInput, match="did you mean 'maxinfo-sac'"):
        parse().restricted(["maxinfo-sad"])
    with pytest.raises(BadInput, match="did you mean 'steps'"):
        parse().changed([("step", 3)])


def test_flags_mean_the_settings():
    settings = Settings(
        algo="sac", env="Pendulum-v1", steps=7, seed=3, action_cost=0.5, record_states=True, env_arg=(("a", True),),
        set=(("base.hidden", (8, 8)), ("base.noise", {"kind": "Linear", "start": 1.0, "end": 0.1, "steps": 5})),
    )  # fmt: skip
    args = cli.parser().parse_args(["train", *as_flags(settings)])
    assert cli.settings_from(args) == settings


def test_the_fingerprint_is_of_the_numbers_only():
    settings = Settings(algo="sac", env="Pendulum-v1", steps=1000)
    mark = lambda **changes: fingerprint(*resolve(replace(settings, **changes)))
    same = [
        {"log_every": 7},
        {"keep": 1},
        {"video": True},
        {"record_states": True},
        {"capacity": 5000},
        {"loop": "host"},
        {"workers": True},
    ]
    same += [{"algo": None, "base": "sac"}, {"set": (("base.tau", 0.005),)}, {"uncertainty": "paper"}]
    assert {mark(**change) for change in same} == {mark()}
    differ = [{"seed": 1}, {"steps": 999}, {"eval_every": 10}, {"eval_episodes": 2}, {"capacity": 500}]
    differ += [{"env_arg": (("g", 9.0),)}, {"set": (("base.tau", 0.1),)}, {"algo": "maxinfo-sac"}, {"num_envs": 2}]
    assert len({mark(**change) for change in differ} | {mark()}) == len(differ) + 1


def test_a_damaged_configuration_is_the_matter_of_its_run(tmp_path):
    runs = parse().runs()
    (tmp_path / runs[0].name).mkdir(parents=True)
    (tmp_path / runs[0].name / "config.toml").write_text("garbage = [")
    assert [p.state for p in plan(runs, tmp_path)] == ["interrupted", *["new"] * (len(runs) - 1)]


def test_published_results_are_recognised():
    suite = parse_suite(
        {
            "algorithms": ["sac", "maxinfo-sac"],
            "environments": ["MountainCarContinuous-v0"],
            "settings": {"steps": 10000, "eval_episodes": 10},
        },
        "published",
    )
    planned = plan(suite.changed([("intrinsic.hidden", (64, 64))]).runs(), Path("nowhere"), [RESULTS])
    assert len(planned) == 10 and {p.state for p in planned} == {"finished"}
    assert {p.directory.parent.name for p in planned} == {"sac", "maxinfo-sac"}


def test_a_plan_says_what_is_left(tmp_path):
    suite = parse(algorithms=["sac"], environments=["Pendulum-v1"], settings={"steps": 100}, seeds=4)
    runs = suite.runs()
    write_run(tmp_path / "out" / runs[0].name, runs[0].settings)
    write_run(tmp_path / "out" / runs[1].name, runs[1].settings, upto=50)
    write_run(tmp_path / "old" / "somewhere", runs[2].settings)
    (tmp_path / "old" / "damaged").mkdir()
    (tmp_path / "old" / "damaged" / "config.toml").write_text("format = 99")
    problems: list[str] = []
    planned = plan(runs, tmp_path / "out", [tmp_path / "old"], problems)
    assert [p.state for p in planned] == ["finished", "interrupted", "finished", "new"]
    assert planned[2].directory == (tmp_path / "old" / "somewhere").resolve()
    assert len(problems) == 1 and "newer format" in problems[0]
    with pytest.raises(BadInput, match="not a directory"):
        plan(runs, tmp_path / "fresh", [tmp_path / "absent"])


def test_states_that_are_asked_for_must_be_there(tmp_path):
    suite = parse(algorithms=["sac"], environments=["Pendulum-v1"], settings={"record_states": True}, seeds=1)
    (run,) = suite.runs()
    folder = write_run(tmp_path / "old" / "run", run.settings)
    assert plan([run], tmp_path / "out", [tmp_path / "old"])[0].state == "new"
    (folder / "states.npz").touch()
    assert plan([run], tmp_path / "out", [tmp_path / "old"])[0].state == "finished"


def test_seeds_that_train_together_are_finished_when_all_reached_stop_at(tmp_path):
    runs = parse(algorithms=["sac"], environments=["Pendulum-v1"], settings={"stop_at": 1.5}, seeds=2).runs()
    for run in runs:
        folder = write_run(tmp_path / run.name, run.settings, upto=50)
        (folder / "checkpoints" / "step-000000050").mkdir(parents=True)
        (folder / "config.toml").write_text("together = [0, 1]\n" + (folder / "config.toml").read_text())
        row = f"50,50,{run.settings.seed},{2.0 - run.settings.seed},0,0,0,5,1\n"  # seed 1 has not reached it
        (folder / "eval.csv").write_text(f"{EVAL_COLUMNS}\n{row}")
    problems: list[str] = []
    planned = plan(runs, tmp_path)
    assert [p.state for p in planned] == ["interrupted", "interrupted"]
    assert len(gather(planned, problems)) == 2
    assert [sentence.partition(":")[0] for sentence in problems] == [f"{r.name} is not finished" for r in runs]
    (folder / "eval.csv").write_text(f"{EVAL_COLUMNS}\n50,50,1,1.5,0,0,0,5,1\n")
    problems.clear()
    found = gather(plan(runs, tmp_path), problems)
    assert not problems and all(run.ended for run in found)


def test_checkpoints_decide_where_there_are_any(tmp_path):
    settings = Settings(algo="sac", env="Pendulum-v1", steps=100)
    folder = write_run(tmp_path / "run", settings)
    (folder / "checkpoints" / "step-000000050").mkdir(parents=True)
    assert not finished(folder, Settings(steps=100))
    (folder / "checkpoints" / "step-000000100").mkdir()
    assert finished(folder, Settings(steps=100))


def test_a_directory_with_another_run_is_refused(tmp_path):
    suite = parse(algorithms=["sac"], environments=["Pendulum-v1"], seeds=1)
    (run,) = suite.runs()
    write_run(tmp_path / run.name, replace(run.settings, batch_size=8))
    with pytest.raises(BadInput, match="other settings"):
        plan([run], tmp_path)
    code = cli.main(["train", *run.flags, "--out", str(tmp_path / run.name), "--resume"])
    assert code == cli.BAD_INPUT


def test_the_last_whole_line_counts(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    assert logged_steps(folder) == -1
    (folder / "eval.csv").write_text("step,env_step\n")
    assert logged_steps(folder) == -1
    (folder / "eval.csv").write_text("step,env_step\n40,40\n50,5")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 45}) + "\n" + '{"step": 9')
    assert logged_steps(folder) == 45
