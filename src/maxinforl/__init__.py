"""MaxInfoRL: off-policy reinforcement learning that explores by information gain."""

__version__ = "0.1.0"

from maxinforl import compiling  # isort: skip  (before anything wakes JAX)
from maxinforl.agent import Agent, load, make
from maxinforl.algorithms import CATALOGUE
from maxinforl.core.multiplier import Fixed, Tuned
from maxinforl.errors import BadInput, RunFailed
from maxinforl.explore.maxinfo import Tied
from maxinforl.training.resume import resume

__all__ = ["CATALOGUE", "Agent", "BadInput", "Fixed", "RunFailed", "Tied", "Tuned", "load", "make", "resume"]

del compiling
