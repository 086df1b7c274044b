"""Intrinsic rewards: `score(z, a)` of any action, `reward(latents)` of what was observed, and `update`."""

from maxinforl.intrinsic.curiosity import Curiosity
from maxinforl.intrinsic.disagreement import Disagreement
from maxinforl.intrinsic.ensemble import Ensemble, Model
from maxinforl.intrinsic.info_gain import InfoGain
from maxinforl.intrinsic.protocol import IntrinsicReward, MeasuresError, ScoresActions
from maxinforl.intrinsic.rnd import RND

__all__ = [
    "RND",
    "Curiosity",
    "Disagreement",
    "Ensemble",
    "InfoGain",
    "IntrinsicReward",
    "MeasuresError",
    "Model",
    "ScoresActions",
]
