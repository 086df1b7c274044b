"""From runs to the charts and tables of a report."""

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
    """Compute the charts and tables of a report.

    Args:
      runs: as `find_runs` returns them.
      problems: sentences to which those about missing, incomplete or incomparable runs are added.
      threshold: the return to which steps are counted; by default the middle of each task's range.

    Returns:
      What `report.render` writes as HTML and `report.draw_charts` draws.
    """
    if not runs:
        raise BadInput("there are no runs to report: give directories that hold config.toml and metrics.jsonl")
    problems = list(problems)
    runs = name_tasks(runs)
    named = label_runs(runs, problems)
    labels = sorted(named)
    index = {label: i for i, label in enumerate(labels)}
    tasks = [replace(task, given=threshold) for task in group_tasks(named, problems)]
    charts = [curve_chart(task, index) for task in tasks]
    charts += aggregate_charts(tasks, index) + metric_charts(named, index) + state_charts(named, index, problems)
    tables = aggregate_tables(tasks, problems) + [task_table(task) for task in tasks]
    return ReportData(list(runs), labels, charts, tables, problems)
