"""From runs to what a report shows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from maxinforl.errors import BadInput
from maxinforl.experiments.charts import Chart, aggregate_charts, curve_chart, metric_charts, state_charts
from maxinforl.experiments.grouping import group_tasks, label_runs, name_tasks
from maxinforl.experiments.read_runs import RunLogs
from maxinforl.experiments.tables import TextTable, aggregate_tables, task_table


@dataclass(frozen=True)
class ReportData:
    """Everything a report shows."""

    runs: Sequence[RunLogs]
    labels: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[TextTable]
    problems: Sequence[str] = field(default_factory=list)


def summarise(runs: Sequence[RunLogs], problems: Iterable[str] = (), threshold: float | None = None) -> ReportData:
    """Charts and tables of all runs; whatever is missing, incomplete or unlike is said in `problems`."""
    if not runs:
        raise BadInput("there are no runs to report: give directories that hold config.toml and metrics.jsonl")
    notes = list(problems)
    runs = name_tasks(runs)
    named = label_runs(runs, notes)
    labels = sorted(named)
    index = {label: i for i, label in enumerate(labels)}
    tasks = [replace(task, given=threshold) for task in group_tasks(named, notes)]
    charts = [curve_chart(task, index) for task in tasks]
    charts += aggregate_charts(tasks, index) + metric_charts(named, index) + state_charts(named, index, notes)
    tables = aggregate_tables(tasks, notes) + [task_table(task) for task in tasks]
    return ReportData(list(runs), labels, charts, tables, notes)
