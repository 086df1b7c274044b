"""The two pictures of a run: its learning curve, and the states it visited."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from maxinforl import files

NAMES = {
    "MountainCarContinuous-v0": (0, 1, "position", "velocity"),
    "jax/mountain-car": (0, 1, "position", "velocity"),
}


def canvas(width: float = 5.0, height: float = 3.2):
    """A figure and axes of the house style, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def write(figure, directory: Path, name: str) -> None:
    """A picture in a run directory: whole or not at all, and through no link."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    files.write_atomic(files.inside(directory, name), buffer.getvalue())


def plain(name: str) -> str:
    """A name as it is: Matplotlib would read dollar signs as formulas."""
    return name.replace("$", r"\$")


def curve_picture(directory: Path, algo: str, env: str, points: np.ndarray) -> None:
    """curve.png of evaluations, each a step with a mean and a standard deviation."""
    step, mean, std = points[np.isfinite(points).all(1)].T
    figure, axes = canvas()
    axes.plot(step, mean, color="#0b6e99", label=algo)
    axes.fill_between(step, mean - std, mean + std, color="#0b6e99", alpha=0.2, linewidth=0)
    axes.set(xlabel="agent steps", ylabel="return of an evaluation", title=plain(f"{algo} on {env}"))
    write(figure, directory, "curve.png")


def phase(env: str, states: np.ndarray) -> tuple[np.ndarray, np.ndarray, str, str]:
    """Two coordinates worth looking at: position and velocity, a pendulum's angle and speed, else the first two."""
    if "endulum" in env and states.shape[1] == 3:
        return np.arctan2(states[:, 1], states[:, 0]), states[:, 2], "angle from upright", "angular velocity"
    i, j, x, y = NAMES.get(env, (0, min(1, states.shape[1] - 1), "observation 0", "observation 1"))
    return states[:, i], states[:, j], x, y


def phase_picture(directory: Path, env: str, order: np.ndarray, states: np.ndarray) -> None:
    """phase.png of the visited states, coloured by when."""
    x, y, x_name, y_name = phase(env, states)
    figure, axes = canvas()
    dots = axes.scatter(x, y, c=order, s=3, cmap="viridis", linewidths=0)
    figure.colorbar(dots, label="agent step")
    axes.set(xlabel=x_name, ylabel=y_name, title=plain(f"states visited on {env}"))
    write(figure, directory, "phase.png")
