"""Exploration strategies: agents made of an agent, which speak to it through `Shaping` and nothing else."""

from maxinforl.core.multiplier import Fixed, Paired, Tied, Tuned
from maxinforl.explore.eipo import Eipo
from maxinforl.explore.intrinsic_sum import IntrinsicSum
from maxinforl.explore.maxinfo import MaxInfo
from maxinforl.explore.strategy import Plain, Strategy
from maxinforl.explore.switch import Epsilon, Switch, Then

__all__ = [
    "Eipo",
    "Epsilon",
    "Fixed",
    "IntrinsicSum",
    "MaxInfo",
    "Paired",
    "Plain",
    "Strategy",
    "Switch",
    "Then",
    "Tied",
    "Tuned",
]
