"""Public curves beside one's own: what is drawn, what is said, what is refused."""

from __future__ import annotations

import json
import re

import pytest

from maxinforl import cli
from maxinforl.errors import BadInput
from maxinforl.experiments.reference import NAMES, read_curves
from maxinforl.experiments.report import report

HEADER = "algorithm,env,env_steps_used,mean,std_err,runs,source"
ROW = "SAC,walker-run,{},10.5,1.5,10,owner/name results/sac.csv"


def run_of(tmp_path, env: str, extra: str = ""):
    """A run of 1 000 agent steps, 2 000 of the environment."""
    folder = tmp_path / "runs" / "seed-0"
    folder.mkdir(parents=True)
    folder.joinpath("config.toml").write_text(
        f'algo = "sac"\nenv = "{env}"\nseed = 0\nsteps = 1000\n[settings]\naction_repeat = 2\n{extra}'
    )
    lines = ["step,env_step,episodes,mean_return"] + [f"{s},{2 * s},5,{s / 10}" for s in (0, 500, 1000)]
    folder.joinpath("eval.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "runs"


def public(tmp_path, *rows: str, header: str = HEADER):
    path = tmp_path / "public.csv"
    path.write_text("\n".join(["# a comment", header, *rows]) + "\n")
    return path


def charts(page) -> dict:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_public_curves_are_drawn_on_environment_steps_with_error_source_and_table(tmp_path):
    path = public(tmp_path, *(ROW.format(n) for n in (4000, 1000, 9000)))
    page = report([run_of(tmp_path, "dmc/walker-run")], tmp_path / "r.html", reference=path)
    data = charts(page)
    chart = next(c for c in data["charts"] if c["tab"] == "curves")
    (line,) = [x for x in chart["lines"] if x.get("public")]
    assert line["x"] == "1000 4000"  # up to twice the 2 000 environment steps of the run
    assert (line["y"], line["low"], line["high"]) == ("10.5 10.5", "9 9", "12 12")
    assert data["labels"][line["label"]] == "SAC · owner/name"
    assert "owner/name results/sac.csv" in page.read_text() and "10.5 ± 1.50" in page.read_text()


def test_another_version_is_drawn_and_said(tmp_path, capsys):
    path = public(tmp_path, ROW.format(1000).replace("walker-run", "Hopper-v4"))
    runs, out = run_of(tmp_path, "Hopper-v5"), tmp_path / "r.html"
    assert cli.main(["report", str(runs), "--out", str(out), "--reference", str(path)]) == 0
    assert "other version: Hopper-v5: the public curves are on Hopper-v4" in capsys.readouterr().out


REFUSED = [
    ([ROW.format(1000)], HEADER.replace("std_err", "deviation"), "has no column std_err"),
    ([ROW.format("nan")], HEADER, "row 2: env_steps_used is 'nan', not a finite number"),
    ([ROW.format(1000).replace(",1.5,", ",-1.5,")], HEADER, "std_err is '-1.5', not a finite number of at least 0"),
    ([ROW.format(1000).replace("10.5", "inf")], HEADER, "mean is 'inf'"),
    ([ROW.format(1000).replace("owner/name results/sac.csv", "")], HEADER, "source is empty"),
    ([], HEADER, "holds no curve"),
    ([ROW.format(1000).replace("walker-run", "walker-walk")], HEADER, "no curve for a task of these runs"),
]


@pytest.mark.parametrize(("rows", "header", "said"), REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(rows, header, said, tmp_path):
    path = public(tmp_path, *rows, header=header)
    with pytest.raises(BadInput, match=re.escape(said)):
        report([run_of(tmp_path, "dmc/walker-run")], tmp_path / "r.html", reference=path)
    assert not (tmp_path / "r.html").exists()


def test_a_task_with_an_action_cost_is_not_the_public_one(tmp_path):
    runs = run_of(tmp_path, "dmc/walker-run", "action_cost = 0.1\n")
    with pytest.raises(BadInput, match="action cost or environment arguments"):
        report([runs], tmp_path / "r.html", reference=public(tmp_path, ROW.format(1000)))


def test_the_shipped_curves_are_of_tasks_that_the_library_knows():
    curves = read_curves("public")
    gym = re.compile(r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Walker2d)-v4")
    assert all(c.task in NAMES or gym.fullmatch(c.task) for c in curves)
    found = {c.label: c for c in curves if c.env == "dmc/pendulum-swingup"}
    assert found["SAC (SimBa repo) · SonyResearch/simba"].mean[0] == 44.35


def test_names_map_to_tasks_that_exist():
    pytest.importorskip("dm_control")
    from maxinforl.envs.names import catalogue

    assert set(NAMES.values()) <= set(catalogue())
