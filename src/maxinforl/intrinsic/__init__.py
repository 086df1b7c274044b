"""Intrinsic rewards: pure `score(z, a)` for any action, `reward(latents)` for what was observed, and `update`."""

from maxinforl.intrinsic.curiosity import Curiosity
from maxinforl.intrinsic.disagreement import Disagreement
from maxinforl.intrinsic.ensemble import Ensemble, Model
from maxinforl.intrinsic.info_gain import InfoGain
from maxinforl.intrinsic.rnd import RND

__all__ = ["RND", "Curiosity", "Disagreement", "Ensemble", "InfoGain", "Model"]
