"""Writes docs/benchmarks.md from the raw runs in results/: python benchmarks/page.py"""

import json
from collections import Counter
from pathlib import Path

import numpy as np

from maxinforl.experiments.read_runs import RunLogs, find_runs
from maxinforl.experiments.reference import PublicCurve, read_curves
from maxinforl.experiments.reproduce import Figure, gather, load_figure, solved_tables
from maxinforl.experiments.solved import markdown
from maxinforl.experiments.suite_runs import plan
from maxinforl.experiments.tables import TextTable

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "results"
AT = (50_000, 100_000, 200_000)  # environment steps at which public curves are quoted
VERDICTS = ("confirmed", "contradicted", "not shown", "not run")


def number(mean: float, error: float) -> str:
    return f"{mean:.0f}" + (f" ± {error:.0f}" if np.isfinite(error) else "")


def at(steps: np.ndarray, means: np.ndarray, errors: np.ndarray, step: int) -> str:
    here = np.flatnonzero(steps == step)
    return number(means[here[0]], errors[here[0]]) if len(here) else "–"


def own_rows(runs: list[RunLogs], task: str) -> list[list[str]]:
    """Mean and standard error over seeds of this library's runs, at environment steps that were evaluated."""
    rows = []
    for label in dict.fromkeys(run.algo for run in runs if run.env == task):
        curves = [run.curve for run in runs if (run.algo, run.env) == (label, task) and run.curve is not None]
        cells = []
        for step in AT:
            values = np.array([v for c in curves for v in c.value[c.env_step == step]])
            error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
            cells.append(number(values.mean(), error) if len(values) else "–")
        rows.append([f"**{label}**", str(len(curves)), *cells, "here"])
    return rows


def public_rows(curves: list[PublicCurve], env: str) -> list[list[str]]:
    found = sorted((c for c in curves if c.env == env), key=lambda c: c.label)
    rows = [[c.algorithm, str(c.runs), *(at(c.steps, c.mean, c.std_err, s) for s in AT), c.source] for c in found]
    return [row for row in rows if set(row[2:5]) != {"–"}]


def beside_public(figure: Figure, runs: list[RunLogs]) -> list[str]:
    """Public numbers beside one's own, for tasks that have some."""
    curves, lines = read_curves("public"), []
    for task in figure.thresholds:
        env = figure.suite.environments[task].get("env", task)
        if rows := public_rows(curves, env):
            header = ["agent", "seeds", *(f"{step:,}".replace(",", " ") for step in AT), "source"]
            table = TextTable(task, "", header, own_rows(runs, task) + rows)
            lines += [f"### {task}: public numbers beside these", "", markdown(table), ""]
    return lines


def hard_exploration() -> list[str]:
    figure = load_figure("hard-exploration")
    planned = plan(figure.suite.runs(), ROOT / "runs" / "none", [RESULTS])
    runs = gather(planned, [])
    lines = []
    for table in solved_tables(figure, planned, runs):
        lines += [f"### {table.title}", "", markdown(table), ""]
    return [*lines, table.note, "", *beside_public(figure, runs)]


def fidelity() -> list[str]:
    curves = read_curves("public")
    runs = find_runs([RESULTS / "fidelity"])
    rows = [
        [run.algo, run.env, str(run.seed), f"{s:,.0f}".replace(",", " "), f"{v:.0f}"]
        for run in runs
        if (c := run.curve) is not None
        for s, v in zip(c.env_step, c.value)
        if s in (*AT, 300_000, 500_000)
    ]
    header = ["agent", "task", "seed", "environment steps", "return"]
    lines = [markdown(TextTable("", "", header, rows)), ""]
    for env in dict.fromkeys(run.env for run in runs):
        head = ["agent", "seeds", *(f"{step:,}".replace(",", " ") for step in AT), "source"]
        lines += [f"Public curves on `{env}`:", "", markdown(TextTable("", "", head, public_rows(curves, env))), ""]
    return lines


def claims() -> list[str]:
    rows = []
    for path in sorted(RESULTS.glob("figures/*/verdicts.json")):
        counts = Counter(verdict["verdict"] for verdict in json.loads(path.read_text()))
        name = path.parent.name
        rows.append([f"[{name}](../results/figures/{name})", *(str(counts[v]) for v in VERDICTS)])
    return [markdown(TextTable("", "", ["figure", *VERDICTS], rows)), ""]


INTRODUCTION = """# Benchmarks

`python benchmarks/page.py` writes this page from the raw runs in [results](../results). Every seed that was run is in
it, and so is every cell that was not.

## Hard exploration

Tasks on which noise rarely finds the reward. The suite, its budgets, thresholds and rules were written before its runs:
`src/maxinforl/experiments/suites/hard-exploration.toml`. Catalogue defaults with the light ensemble, one update per
step (two on the sparse cartpole), nothing tuned per task.

<!-- parsed only: trains for hours -->
```console
maxinforl reproduce hard-exploration --dry-run --out out                  # cells, hours, memory
maxinforl reproduce hard-exploration --envs pendulum-swingup --algos maxinfo-sac --seeds 0 --out out
maxinforl reproduce hard-exploration --reuse results --jobs 0 --out out   # figure and tables of the runs there are
```

An agent of any library runs on the same tasks and the same grid of evaluations; `examples/benchmark_sbx.py` does it
with sbx:

<!-- parsed only: trains for hours -->
```python
import maxinforl

make_agent = lambda env, seed: maxinforl.make("sac", env, seed=seed, eval_episodes=0)
maxinforl.benchmark(make_agent, "mine", "runs/mine", tasks=["pendulum-swingup"])
```
"""
FIDELITY = """## Fidelity

Does SAC here learn as SAC elsewhere? Rules and what is left to run: [results/fidelity](../results/fidelity).
"""
CLAIMS = """## Claims of the paper

How many of each figure's claims the runs confirm, contradict or leave open; the rules are in
[suites, figures and verdicts](evidence.md#figures-and-verdicts). Most figures were run on a part of their tasks.
"""
MISSING = """## Not run

- Every row above that says *not run*, and every figure of `maxinforl list --figures` that is not in the table of
  claims: `maxinforl reproduce FIGURE --dry-run` prints its hours on two cores.
- The paper's humanoid and pixel tasks: days to weeks on two cores.
"""


def main() -> None:
    parts = [INTRODUCTION, *hard_exploration(), FIDELITY, *fidelity(), CLAIMS, *claims(), MISSING]
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
