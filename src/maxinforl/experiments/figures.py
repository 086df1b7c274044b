"""One visual style for every figure, without pyplot's global state and without a display."""

import csv
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from maxinforl.experiments.statistics import mean_se
from maxinforl.files import make_directory, writing

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's colour-blind safe colours; the report's page uses the same.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#666666", "#A6761D", "#A50F15")

STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,  # TrueType: journals reject Type 3 fonts
    "savefig.dpi": 160,
    "svg.hashsalt": "maxinforl",
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a drawing function in the style: some of Matplotlib's settings are only read while drawing."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def colour(index: int) -> str:
    """The colour of the index-th series."""
    return COLOURS[index % len(COLOURS)]


@styled
def canvas(rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.6) -> tuple[Figure, list[Axes]]:
    """A figure of rows × columns panels, each `width` × `height` inches, and its axes in reading order."""
    figure = Figure(figsize=(columns * width, rows * height))
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


@styled
def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format of its suffix, without dates: equal data give equal files."""
    path = Path(path)
    make_directory(path.parent)
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with writing(path):
        figure.savefig(path, metadata=undated.get(path.suffix[1:]))
    return path


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 15) -> None:
    """Write the numbers behind a figure; floats with `digits` significant digits."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([f"{v:.{digits}g}" if isinstance(v, float | np.floating) else v for v in row] for row in rows)


def band(ax: Axes, x: ArrayLike, low: ArrayLike, middle: ArrayLike, high: ArrayLike, label: str, **style) -> None:
    """A line and the interval around it."""
    (line,) = ax.plot(np.asarray(x), np.asarray(middle), label=label, **style)
    ax.fill_between(np.asarray(x), np.asarray(low), np.asarray(high), color=line.get_color(), alpha=0.2, linewidth=0)


def learning_curve(ax: Axes, steps: ArrayLike, returns_by_seed: ArrayLike, label: str, **style) -> None:
    """Mean over seeds (rows) with its standard error; where one seed is left there is a line and no band."""
    mean, se, _ = mean_se(returns_by_seed)
    se = np.where(np.isfinite(se), se, 0.0)
    band(ax, steps, mean - se, mean, mean + se, label, **style)


def shared_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, each name once."""
    lines = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    if lines:
        columns = min(len(lines), 3 if len(axes) > 1 else 2)
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns)


def step_axis(ax: Axes) -> None:
    """Write steps as 50k and 2M."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def phase_plot(
    ax: Axes,
    states: ArrayLike,
    steps: ArrayLike | None = None,
    dims: tuple[int, int] = (0, 1),
    names: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Visited states in two of their dimensions, coloured by when they were visited."""
    states = np.asarray(states, float)
    steps = np.arange(len(states)) if steps is None else np.asarray(steps)
    ax.scatter(states[:, dims[0]], states[:, dims[1]], c=steps, s=2, cmap="viridis", linewidths=0, rasterized=True)
    names = [f"state[{d}]" for d in dims] if names is None else names
    ax.set(xlabel=names[0], ylabel=names[1], title=title)
