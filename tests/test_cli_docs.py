"""Help, completion and types: what an editor or a shell offers is what exists."""

import subprocess
from importlib.resources import files
from shutil import which
from typing import get_args

import pytest

from doc_blocks import Block, commands, parse
from maxinforl import cli, cli_docs
from maxinforl.algorithms import CATALOGUE, Algo
from maxinforl.errors import BadInput


def test_the_help_of_every_command_ends_with_examples_that_parse():
    for name, command in cli_docs.commands_of(cli.parser()).items():
        text = command.format_help()
        assert "examples:" in text and f"maxinforl {name}" in text.split("examples:")[1]
        for arguments in commands(Block("console", "\n".join(cli_docs.EXAMPLES[name]), None, 0)):
            assert arguments == [] or arguments[0] == name
            parse(arguments)


def test_every_argument_has_a_sentence():
    for name, command in cli_docs.commands_of(cli.parser()).items():
        assert [a.dest for a in command._actions if not a.help] == [], name


def completed(words: list[str]) -> list[str]:
    """What bash offers after these words."""
    script = cli_docs.completion("bash", cli.parser())
    array = " ".join(f"'{w}'" for w in words)
    place = f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}"
    ask = f'{script}\n{place}; _shtab_maxinforl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_flags_and_names():
    assert completed(["maxinforl", "exp"]) == ["export"]
    assert completed(["maxinforl", "train", "--see"]) == ["--seed", "--seeds"]
    assert completed(["maxinforl", "train", "--algo", "maxinfo-dr"]) == [
        n for n in CATALOGUE if n.startswith("maxinfo-dr")
    ]
    assert completed(["maxinforl", "export", "--to", ""]) == ["numpy", "onnx"]
    assert completed(["maxinforl", "completion", "z"]) == ["zsh"]
    assert "pendulum-hanging" in completed(["maxinforl", "train", "--workers", "--env", "pendulum-"])
    assert completed(["maxinforl", "resume", __file__[:-1]]) == [__file__]


@pytest.mark.parametrize("shell", cli_docs.SHELLS)
def test_scripts_are_of_their_shell_and_know_every_command(shell):
    script = cli_docs.completion(shell, cli.parser())
    assert all(name in script for name in cli_docs.commands_of(cli.parser()))
    if which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_an_unknown_shell_is_refused():
    with pytest.raises(BadInput, match="unknown shell 'tcsh'"):
        cli_docs.completion("tcsh", cli.parser())


def test_editors_know_the_names():
    assert (files("maxinforl") / "py.typed").is_file()
    assert set(get_args(Algo)) == set(CATALOGUE)
