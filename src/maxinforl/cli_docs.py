"""What people learn the command line from: examples in --help, shell completion, the reference page."""

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
    """The parser of every command."""
    return next(a.choices for a in root._actions if isinstance(a, argparse._SubParsersAction))  # type: ignore[return-value]


def add_examples(root: argparse.ArgumentParser) -> None:
    """Ends the help of every command with examples."""
    for name, command in commands_of(root).items():
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))


def flags_of(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in command._actions if a.option_strings]


def summary_of(root: argparse.ArgumentParser, name: str) -> str:
    """The line that the list of commands says about one."""
    group = next(a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    return next(a.help or "" for a in group._choices_actions if a.dest == name)


# --- completion ----------------------------------------------------------------------------------------------------


def values() -> dict[str, list[str]]:
    """What may follow a flag, where that is a list of names."""
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


def words_of(root: argparse.ArgumentParser) -> dict[str, list[str]]:
    """What may follow each command: its flags, and names where it takes one of a few."""
    named = {"completion": list(SHELLS)}
    return {
        name: named.get(name, []) + [s for a in flags_of(command) for s in a.option_strings if s.startswith("--")]
        for name, command in commands_of(root).items()
    }


def completion(shell: str, root: argparse.ArgumentParser) -> str:
    """A script that completes commands, flags and names in a shell."""
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](root)


def cases(root: argparse.ArgumentParser, assign: str) -> str:
    """The body both bash and zsh share: which words may come next."""
    after = "\n".join(f"      {flag}) {assign.format(' '.join(names))} ;;" for flag, names in values().items())
    flags = "\n".join(f"      {name}) {assign.format(' '.join(words))} ;;" for name, words in words_of(root).items())
    return f'    case "$before" in\n{after}\n      *) case "$command" in\n{flags}\n      esac ;;\n    esac'


def bash(root: argparse.ArgumentParser) -> str:
    return f"""_maxinforl() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{" ".join(commands_of(root))}"
  else
{cases(root, 'words="{}"')}
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _maxinforl maxinforl
"""


def zsh(root: argparse.ArgumentParser) -> str:
    return f"""#compdef maxinforl
_maxinforl() {{
  local before="${{words[CURRENT-1]}}" command="${{words[2]}}"
  local -a next
  if (( CURRENT == 2 )); then
    next=({" ".join(commands_of(root))})
  else
{cases(root, "next=({})")}
  fi
  compadd -- $next
  _files
}}
compdef _maxinforl maxinforl
"""


def fish(root: argparse.ArgumentParser) -> str:
    known = values()

    def lines() -> Iterator[str]:
        for name, command in commands_of(root).items():
            yield f"complete -c maxinforl -n __fish_use_subcommand -a {name} -d {quoted(summary_of(root, name))}"
            here = f"complete -c maxinforl -n '__fish_seen_subcommand_from {name}'"
            for flag in (a for a in flags_of(command) if a.option_strings[-1].startswith("--")):
                long = flag.option_strings[-1]
                follows = f" -x -a {quoted(' '.join(known[long]))}" if long in known and flag.nargs != 0 else ""
                yield f"{here} -l {long[2:]}{follows} -d {quoted(flag.help or '')}"
        yield f"complete -c maxinforl -n '__fish_seen_subcommand_from completion' -a {quoted(' '.join(SHELLS))}"

    return "\n".join(lines()) + "\n"


def quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- the reference page --------------------------------------------------------------------------------------------


def reference(root: argparse.ArgumentParser) -> str:
    """docs/reference/cli.md."""
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
        name = " ".join(filter(None, [action.option_strings[-1] if action.option_strings else "", shown(action)]))
        yield f"| `{name}` | {(action.help or '').replace('%%', '%').replace('|', chr(92) + '|')} |"


def shown(action: argparse.Action) -> str:
    """The placeholder of an argument's value; switches have none."""
    return str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
