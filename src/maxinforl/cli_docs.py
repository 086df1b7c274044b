"""Help derived from the command line: examples in --help, shell completion, the reference page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from maxinforl.errors import unknown

EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "maxinforl train",
        "maxinforl train --algo maxinfo-sac --env Pendulum-v1 --steps 10000 --seeds 0-4 --out runs/five",
        "maxinforl train --base redq --explore maxinfo --intrinsic rnd --env dmc/walker-run --steps 100000",
        "maxinforl train --algo sac --set base.lr=1e-4 --set base.hidden=[512,512]",
    ),
    "resume": ("maxinforl resume runs/five",),
    "eval": ("maxinforl eval runs/five/seed-0 --episodes 20",),
    "list": ("maxinforl list", "maxinforl list --envs", "maxinforl list --preset", "maxinforl list --figures"),
    "report": ("maxinforl report runs/five runs/other --out report.html",),
    "sweep": ("maxinforl sweep my-suite.toml --dry-run", "maxinforl sweep my-suite.toml --jobs 4"),
    "reproduce": (
        "maxinforl reproduce bandit --out figures/bandit",
        "maxinforl reproduce phase-plot --set uncertainty=light --out figures/phase-plot",
    ),
    "bench": ("maxinforl bench speed --algos sac,maxinfo-sac --uncertainty paper --json speed.json",),
    "export": (
        "maxinforl export runs/five/seed-0 --to numpy --out bundle",
        "maxinforl export runs/five/seed-0 --to onnx --out bundle",
    ),
    "inspect": ("maxinforl inspect runs/five/seed-0",),
    "completion": (
        'eval "$(maxinforl completion bash)"',
        "maxinforl completion fish > ~/.config/fish/completions/maxinforl.fish",
    ),
    "doctor": (
        "maxinforl doctor",
        "maxinforl doctor --algo drq --env pixels/dmc/cartpole-swingup --steps 250000",
    ),
}
SHELLS = ("bash", "zsh", "fish")


def commands_of(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    return next(a.choices for a in root._actions if isinstance(a, argparse._SubParsersAction))  # type: ignore[return-value]


def add_examples(root: argparse.ArgumentParser) -> None:
    """Append examples to the help of every command."""
    for name, command in commands_of(root).items():
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))


def summary_of(root: argparse.ArgumentParser, name: str) -> str:
    """The one-line help of a command."""
    group = next(a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    return next(a.help or "" for a in group._choices_actions if a.dest == name)


# --- completion ----------------------------------------------------------------------------------------------------


def choices() -> dict[str, list[str]]:
    """The values of each flag that takes one of a few names."""
    from maxinforl import envs
    from maxinforl.algorithms import BASES, CATALOGUE, INTRINSICS, STRATEGIES
    from maxinforl.deploy.bundle import FORMATS
    from maxinforl.settings import PRESETS

    return {
        "--algo": list(CATALOGUE),
        "--base": list(BASES),
        "--explore": list(STRATEGIES),
        "--intrinsic": list(INTRINSICS),
        "--env": list(envs.catalogue()),
        "--preset": [p.name for p in PRESETS] + ["none"],
        "--uncertainty": ["paper", "light"],
        "--on-nan": ["stop", "skip"],
        "--to": list(FORMATS),
    }


def completion(shell: str, root: argparse.ArgumentParser) -> str:
    """A script that completes commands, flags, names and files in a shell.

    >>> completion("bash", maxinforl.cli.parser())
    """
    import shtab

    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    known = choices()
    for name, command in commands_of(root).items():
        for action in (a for a in command._actions if a.nargs != 0):
            own = SHELLS if name == "completion" else None
            action.choices = next((known[f] for f in action.option_strings if f in known), own)
            if action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(root, shell)


# --- the reference page --------------------------------------------------------------------------------------------


def reference(root: argparse.ArgumentParser) -> str:
    """The text of docs/reference/cli.md, from the parser."""
    parts = [
        "# Command line",
        "Written by `python tools/reference.py` from the parser itself. Exit codes: 0 done, 2 bad input, 3 run failed, "
        "75 preempted (`maxinforl resume` continues).",
    ]
    for name, command in commands_of(root).items():
        parts += [f"## maxinforl {name}", sentence(summary_of(root, name))]
        lines = "\n".join(EXAMPLES.get(name, ()))
        parts.append(f"<!-- parsed only: examples of every command -->\n```console\n{lines}\n```")
        if rows := list(arguments(command)):
            parts.append("| argument | meaning |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if action.dest == "help":
            continue
        name = " ".join(filter(None, [action.option_strings[-1] if action.option_strings else "", placeholder(action)]))
        yield f"| `{name}` | {(action.help or '').replace('%%', '%').replace('|', chr(92) + '|')} |"


def placeholder(action: argparse.Action) -> str:
    """The placeholder of an argument's value; switches have none."""
    return str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
