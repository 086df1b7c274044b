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
SHARED = {"Ensemble": 105, "MaxInfo": 70}  # what every intrinsic reward has, once; the paper's algorithm


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


def imports(path: Path, everywhere: bool) -> set[str]:
    """Modules of this package that a file imports when it is imported itself, or `everywhere` in it."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maxinforl"):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in inner}
    return {name for name in found if name in MODULES}


def module_of(path: Path) -> str:
    parts = ("maxinforl", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports(path, everywhere=False) - {name, "maxinforl"} for name, path in MODULES.items()}
    done, on_the_way = set(), []

    def visit(name: str) -> None:
        assert name not in on_the_way, " → ".join([*on_the_way[on_the_way.index(name) :], name])
        if name not in done:
            on_the_way.append(name)
            for other in sorted(graph[name]):
                visit(other)
            on_the_way.pop()
            done.add(name)

    for name in graph:
        visit(name)


def test_no_import_is_put_off_to_break_a_cycle():
    """Imports inside functions are for what is slow to import or optional: the command line and the public names."""
    lazy = {
        name: late
        for name, path in MODULES.items()
        if (late := imports(path, everywhere=True) - imports(path, everywhere=False))
    }
    allowed = {"maxinforl", "maxinforl.cli", "maxinforl.cli_docs", "maxinforl.listing", "maxinforl.doctor"}
    allowed |= {"maxinforl.envs.jax_native", "maxinforl.envs.names", "maxinforl.deploy.bundle"}
    allowed |= {"maxinforl.training.nonfinite"}
    assert lazy.keys() <= allowed, {name: lazy[name] for name in lazy.keys() - allowed}
