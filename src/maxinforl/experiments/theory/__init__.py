"""The paper's three theoretical statements, each as a small experiment that could fail.

`bandit` plays the epsilon-greedy Gaussian-process bandit, `soft_policy_iteration` solves a random finite MDP with an
exploration bonus, `kl_objective` enumerates every trajectory of a finite problem with additive noise. `reproduce` runs
one of them at full size. The rule behind each verdict is the code of the `*_verdicts` functions, written before the
seeds that it judges were run.
"""

import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from maxinforl.errors import BadInput, unknown
from maxinforl.experiments.theory.bandit_figure import reproduce_bandit
from maxinforl.experiments.theory.gp_bandit import bandit
from maxinforl.experiments.theory.kl_trajectories import kl_objective, reproduce_kl
from maxinforl.experiments.theory.soft_mdp import reproduce_iteration, soft_policy_iteration
from maxinforl.experiments.verdicts import Verdict, verdict_table
from maxinforl.files import make_directory

__all__ = ["REPRODUCE", "bandit", "kl_objective", "reproduce", "soft_policy_iteration"]

REPRODUCE: dict[str, Callable[[Path, float], list[Verdict]]] = {
    "bandit": reproduce_bandit,
    "soft-policy-iteration": reproduce_iteration,
    "kl-objective": reproduce_kl,
}


def reproduce(figure: str, out: str | Path, scale: float = 1.0) -> list[Verdict]:
    """Run one theory experiment; write CSV files, figure.png, verdicts.json and a README.

    Args:
      figure: a key of `REPRODUCE`.
      out: the directory to write to.
      scale: the share of the seeds to run, in (0, 1].

    Returns:
      The verdicts, as written to verdicts.json.
    """
    if figure not in REPRODUCE:
        raise unknown("theory figure", figure, REPRODUCE)
    if not 0 < scale <= 1:
        raise BadInput(f"scale {scale:g} is not in (0, 1]")
    out = make_directory(out)
    verdicts = REPRODUCE[figure](out, scale)
    (out / "verdicts.json").write_text(json.dumps(verdicts, indent=2, allow_nan=False) + "\n")
    flag = "" if scale == 1 else f" --scale {scale:g}"
    made = ", ".join(
        [f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in ("maxinforl", "numpy", "matplotlib"))]
    )
    command = f"maxinforl reproduce {figure}{flag} --out {out}"
    (out / "README.md").write_text(f"# {figure}\n\nMade by `{command}` with {made}.\n\n{verdict_table(verdicts)}")
    return verdicts
