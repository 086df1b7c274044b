"""The shape of the sources: what exploration is made of is small, and nothing in it is written twice."""

import ast
from itertools import combinations
from pathlib import Path

import pytest

from mutations import PACKAGE

RUN = 6  # lines in a row that two files may not share
LONGEST = 60  # lines of a class, without blank ones
PARTS = [p for folder in ("explore", "intrinsic") for p in sorted((PACKAGE / folder).glob("*.py"))]
VALUES = [PACKAGE / "algorithms.py", *(PACKAGE / "core" / f"{n}.py" for n in ("policies", "plasticity"))]
SHARED = {"Ensemble": 90}  # what every intrinsic reward has, once


def lines(path: Path) -> list[str]:
    """What a file says, without blank lines and imports."""
    text = path.read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    skipped = {n for node in imports for n in range(node.lineno, (node.end_lineno or 0) + 1)}
    return [line.strip() for n, line in enumerate(text.splitlines(), 1) if line.strip() and n not in skipped]


def runs(said: list[str]) -> set[tuple[str, ...]]:
    return {tuple(said[i : i + RUN]) for i in range(len(said) - RUN + 1)}


def test_no_two_parts_share_six_lines():
    found = {path: runs(lines(path)) for path in [*PARTS, *VALUES]}
    assert len(PARTS) > 10 and all(path.exists() for path in VALUES)
    shared = [(a.name, b.name, found[a] & found[b]) for a, b in combinations(found, 2) if found[a] & found[b]]
    assert not shared


@pytest.mark.parametrize("path", [*PARTS, *VALUES], ids=lambda p: p.stem)
def test_a_part_is_a_short_class(path):
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            size = sum(bool(line.strip()) for line in text.splitlines()[node.lineno - 1 : node.end_lineno])
            assert size <= SHARED.get(node.name, LONGEST), f"{node.name} has {size} lines"
