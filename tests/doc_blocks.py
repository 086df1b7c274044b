"""Code blocks of the documentation, and how they are run at a small scale.

A fenced block in `python`, `console` or `bash` is run, unless the line before it is one of

    <!-- parsed only: REASON -->    every `maxinforl` command is read by the parser and its names are looked up
    <!-- not run: REASON -->        Python is compiled, commands are left alone

What runs is made small in one place, here: at most 20 steps, batches of 8, networks of (8, 8), one evaluation episode.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import maxinforl
from maxinforl import agent, cli
from maxinforl.settings import resolve

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = re.compile(r"<!-- (parsed only|not run): (\S.*) -->")
SMALL = [
    "--steps",
    "20",
    "--batch-size",
    "8",
    "--eval-episodes",
    "1",
    "--eval-every",
    "20",
    "--set",
    "base.hidden=[8,8]",
]
STEPS = 20


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    mark: str | None
    line: int


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page that is code."""
    found, mark, lines = [], None, page.read_text().splitlines()
    i = 0
    while i < len(lines):
        if fence := re.fullmatch(r"```(\w*)", lines[i].strip()):
            end = next(j for j in range(i + 1, len(lines)) if lines[j].strip() == "```")
            if fence[1] in ("python", "console", "bash"):
                found.append(Block(fence[1], "\n".join(lines[i + 1 : end]), mark, i + 1))
            i, mark = end, None
        elif lines[i].strip():
            match = MARK.fullmatch(lines[i].strip())
            mark = match[1] if match else None
        i += 1
    return found


def commands(block: Block) -> list[list[str]]:
    """The arguments of every `maxinforl` command in a block."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    found = re.findall(r"(?:^|&& |\()maxinforl(?: ([^\n)>|]*))?", text, re.MULTILINE)
    return [shlex.split(arguments, comments=True) for arguments in found]


def parse(arguments: list[str]) -> None:
    """Reads a command as the program would, up to the point where it would begin."""
    args = cli.parser().parse_args(arguments)
    if args.command == "train":
        resolve(cli.settings_from(args))


def run(block: Block, names: dict) -> None:
    """Executes a block; `names` is what the blocks before it defined."""
    if block.language == "python":
        code = compile(block.text, f"line {block.line}", "exec")
        if block.mark is None:
            exec(code, names)
        return
    if block.mark == "not run":
        return
    others = [line for line in block.text.splitlines() if not line.startswith("maxinforl") and line.strip()]
    assert block.mark or not others, f"line {block.line}: {others[0]!r} is not run: mark the block with a reason"
    for arguments in commands(block):
        parse(arguments)
        if block.mark is None:
            code = cli.main([*arguments, *(SMALL if arguments[:1] == ["train"] else [])])
            assert code == 0, f"maxinforl {' '.join(arguments)} ended with {code}"


def shrink(monkeypatch) -> None:
    """Makes what Python blocks ask for small."""
    make, learn, evaluate = maxinforl.make, agent.Agent.learn, agent.Agent.evaluate

    def small_make(*args, set=None, **options):
        small = {"batch_size": 8, "eval_episodes": 1, **options}
        others = {"base.critic_net", "base.actor_net"} <= (set or {}).keys()
        return make(*args, set={**(set or {}), **({} if others else {"base.hidden": (8, 8)})}, **small)

    monkeypatch.setattr(maxinforl, "make", small_make)
    monkeypatch.setattr(agent.Agent, "learn", lambda self, steps, **o: learn(self, min(steps, STEPS), **o))
    monkeypatch.setattr(agent.Agent, "evaluate", lambda self, episodes=1, **o: evaluate(self, 1, **o))
