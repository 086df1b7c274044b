"""MaxInfoRL: off-policy reinforcement learning that explores by information gain."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maxinforl import xla_flags  # noqa: F401  (before anything wakes JAX)

if TYPE_CHECKING:
    from maxinforl.agent import Agent, load, make, resume
    from maxinforl.algorithms import CATALOGUE
    from maxinforl.core.multiplier import Fixed, Tied, Tuned
    from maxinforl.errors import BadInput, RunFailed
    from maxinforl.experiments.benchmark import benchmark
    from maxinforl.prior import Prior
    from maxinforl.prior_files import load_prior

__all__ = ["CATALOGUE", "Agent", "BadInput", "Fixed", "Prior", "RunFailed", "Tied", "Tuned"]
__all__ += ["benchmark", "load", "load_prior", "make", "resume"]

HOMES = {
    "agent": ("Agent", "load", "make", "resume"),
    "algorithms": ("CATALOGUE",),
    "core.multiplier": ("Fixed", "Tied", "Tuned"),
    "errors": ("BadInput", "RunFailed"),
    "experiments.benchmark": ("benchmark",),
    "prior": ("Prior",),
    "prior_files": ("load_prior",),
}


def __getattr__(name: str) -> Any:
    """Public names come with their first use, so that `maxinforl doctor` can tell of a JAX that does not import."""
    for home, names in HOMES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(f"maxinforl.{home}"), name)
            return found
    raise AttributeError(f"module 'maxinforl' has no attribute '{name}'")
