"""Errors for users: one sentence that says what to change."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """An error that is printed without a traceback.

    Args:
        sentence: what is wrong and what to change.
        see: the section of the documentation that says more, such as "environments.md#names".
    """

    def __init__(self, sentence: str, see: str | None = None):
        super().__init__(sentence)
        self.see = see

    def message(self) -> str:
        """The sentence as the command line prints it."""
        return plain(str(self)) + (f" (docs/{self.see})" if self.see else "")


class BadInput(UserError):
    """The request cannot work as written; nothing has been done yet (exit code 2)."""


class RunFailed(UserError):
    """A run that had begun could not continue; its files are kept (exit code 3)."""


def plain(text: str, keep: str = "") -> str:
    r"""Text without characters that would act on a terminal, such as those that files and names may hold.

    >>> plain("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def one_line(error: BaseException) -> str:
    """The type and message of an error, on one line."""
    try:
        text = str(error)
    except Exception:  # of an exception's own
        text = ""
    return " ".join(f"{type(error).__name__}: {text}".split()).removesuffix(":")


EXTRAS = "environments.md#names"
EXTRA_SECTIONS = {
    "hdf5": "your-own.md#demonstrations-and-other-prior-data",
    "onnx": "deployment.md",
    "ray": "evidence.md#launchers",
    "slurm": "evidence.md#launchers",
}
SECTIONS = {  # of the documentation, by the kind of name that is unknown
    "algorithm": "reference/algorithms.md",
    "base": "choosing.md#composing",
    "exploration strategy": "choosing.md#composing",
    "intrinsic reward": "choosing.md#composing",
    "environment": "environments.md#names",
    "setting": "quick-start.md#settings",
    "preset": "quick-start.md#settings",
    "command": "reference/cli.md",
    "figure": "evidence.md#figures-and-verdicts",
}
OTHER_LIBRARIES = {  # what other libraries call a setting: its name here
    "learning_rate": "base.lr",
    "lr": "base.lr",
    "discount": "base.gamma",
    "gamma": "base.gamma",
    "polyak": "base.tau",
    "tau": "base.tau",
    "net_arch": "base.hidden",
    "policy_kwargs": "base.hidden",
    "ent_coef": "base.alpha",
    "target_entropy": "base.alpha",
    "buffer_size": "capacity",
    "gradient_steps": "update_ratio",
    "train_freq": "update_ratio",
    "total_timesteps": "steps",
}
ARGUMENTS = {  # what other libraries pass where this one has no setting: what to do instead
    "device": "JAX chooses the device: set the environment variable JAX_PLATFORMS to cpu, cuda or tpu",
    "progress_bar": "It is an argument of learn: agent.learn(steps, progress=True)",
    "relabel": "Hindsight relabelling is not offered: give demonstrations as prior_data, or shape the reward",
    "verbose": "It is an argument of learn: agent.learn(steps, progress=True)",
    "callback": "It is an argument of learn: agent.learn(steps, callback=...)",
    "policy": "The networks belong to the base: see base.policy and base.hidden in `maxinforl list --preset`",
}


def unknown(kind: str, name: str, options: Iterable[str], hint: str = "") -> BadInput:
    """The error for an unknown name, with the nearest known ones.

    >>> unknown("algorithm", "maxinfosac", ["sac", "maxinfo-sac"])
    BadInput("unknown algorithm 'maxinfosac': did you mean 'maxinfo-sac'?")
    """
    options, name = sorted(options), repr(name[:100])[1:-1]  # it may come from a file
    plain = lambda text: "".join(filter(str.isalnum, text)).lower()
    near = [option for option in options if plain(option) == plain(name)]
    near = near or get_close_matches(name, options, n=3, cutoff=0.5)
    if kind == "setting" and (called := OTHER_LIBRARIES.get(name.rpartition(".")[2].lower())):
        near = [called]
    if kind == "setting" and name in ARGUMENTS:
        near, hint = [], ARGUMENTS[name]
    sentence = f"unknown {kind} '{name}'"
    if near:
        sentence += ": did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    elif options and len(options) <= 12 and not hint:
        sentence += ": choose from " + ", ".join(options)
    if hint:
        sentence += ("" if near else ".") + f" {hint}"
    return BadInput(sentence, SECTIONS.get(kind))


def missing_extra(extra: str, purpose: str) -> BadInput:
    """The error for an optional dependency that is not installed."""
    see = EXTRA_SECTIONS.get(extra, EXTRAS)
    return BadInput(f"{purpose} needs an extra that is not installed: pip install 'maxinforl[{extra}]'", see)
