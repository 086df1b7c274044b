"""The mutation script itself (tests/mutations.py runs for minutes and is started by hand)."""

import ast
from functools import cache

import pytest

from ast_patterns import definitions, is_free, substitute
from mutations import ALGORITHMS, CORE, MUTATIONS, PACKAGE, ROOT


def test_patterns_find_and_replace():
    function = ast.parse("def f(a, b):\n    return g(a.x + 1, *rest, key=h(b))").body[0]
    substitute(function, "_f(_o._x + 1, *__r, _k=_g(_b))", "_f(_b, *__r, _k=_o._x)")
    assert ast.unparse(function).endswith("return g(b, *rest, key=a.x)")
    with pytest.raises(LookupError, match="matches 0 times"):
        substitute(function, "_x + 1", "_x")
    with pytest.raises(LookupError, match="matches 2 times"):
        substitute(ast.parse("a + a\nb + b"), "_x + _x", "_x")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what.replace(" ", "-"))
def test_a_mutation_still_matches_the_code(mutation):
    """Its pattern matches exactly once, the mutant is other code and still Python, and the tests it names exist."""
    text = mutation.file.read_text()
    mutant = ast.unparse(mutation.apply(ast.parse(text)))
    assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(text))
    for name in mutation.tests:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).exists()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what.replace(" ", "-"))
def test_a_mutation_knows_no_local_name(mutation):
    """It applies to code in which every local variable and parameter has another name."""
    mutation.apply(renamed(ast.parse(mutation.file.read_text())))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what.replace(" ", "-"))
def test_a_mutant_is_wrong_and_not_broken(mutation):
    """Every name that it brings occurs in the package: a mutant with a name that is not there is caught by any test."""
    brought = identifiers(ast.parse(mutation.new)) - identifiers(ast.parse(mutation.old))
    assert {name for name in brought if not is_free(name) and name != "_"} <= of_package()


def test_there_are_enough_of_them():
    assert len(CORE) >= 50 and len(ALGORITHMS) >= 41 and len(MUTATIONS) >= 140
    assert len({m.what for m in MUTATIONS}) == len(MUTATIONS)
    assert PACKAGE.is_dir()


@cache
def of_package() -> set[str]:
    return set().union(*(identifiers(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")))


def identifiers(tree: ast.AST) -> set[str]:
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg", ast.FunctionDef: "name", ast.arg: "arg"}
    found = {getattr(node, kinds[type(node)]) for node in ast.walk(tree) if type(node) in kinds}
    return {name for name in found if name is not None}


def renamed(tree: ast.Module) -> ast.Module:
    for _, scope in definitions(tree.body):
        if isinstance(scope, ast.FunctionDef):
            inner = [n for n in ast.walk(scope) if isinstance(n, ast.FunctionDef) and n is not scope]
            names = {n.arg for n in ast.walk(scope) if isinstance(n, ast.arg)} | {n.name for n in inner}
            names |= {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for node in ast.walk(scope):
                if isinstance(node, ast.Name) and node.id in names:
                    node.id += "_renamed"
                elif isinstance(node, ast.arg):
                    node.arg += "_renamed"
                elif node in inner:
                    node.name += "_renamed"  # type: ignore[attr-defined]
    return tree
