"""The mutation script itself (tests/mutations.py runs for minutes and is started by hand)."""

import ast
from pathlib import Path

import pytest

from mutations import ALGORITHMS, CORE, MUTATIONS, PACKAGE, ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what.replace(" ", "-"))
def test_a_mutation_still_matches_the_code(mutation):
    """Its pattern occurs exactly once, the mutant is still Python, and the tests it names exist."""
    text = (PACKAGE / mutation.file).read_text()
    mutant = mutation.apply(text)
    assert mutant != text
    ast.parse(mutant)
    for name in mutation.tests:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).exists()


def test_there_are_enough_of_them():
    assert len(CORE) >= 15 and len(ALGORITHMS) >= 10
    assert len({m.what for m in MUTATIONS}) == len(MUTATIONS)
    assert Path(PACKAGE).is_dir()
