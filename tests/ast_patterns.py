"""Find and replace code by its syntax tree: patterns are Python in which some names stand for whatever is there.

`_x` stands for any expression, and in the place of an attribute, a keyword or a parameter for any name; `*__x` for the
remaining arguments or elements, `**__x` for the remaining keywords. The same name stands for the same thing throughout.
Line breaks, comments and names of local variables of the code do not matter.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

Found = dict[str, Any]


def is_free(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("_") and len(name) > 1 and not name.endswith("__")


def parse(source: str) -> list[ast.stmt] | ast.expr:
    """An expression, or statements in a row."""
    body = ast.parse(source).body
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else body


# ------------------------------------------------------------ matching


def match(pattern: Any, code: Any, found: Found) -> Found | None:
    """What the pattern's free names stand for, or None where the code is something else."""
    if isinstance(pattern, ast.Name) and is_free(pattern.id):
        return bind(pattern.id, code, found) if isinstance(code, ast.expr) else None
    if isinstance(pattern, str) and is_free(pattern):
        return bind(pattern, code, found) if isinstance(code, str) else None
    if isinstance(pattern, list):
        return match_list(pattern, code, found) if isinstance(code, list) else None
    if not isinstance(pattern, ast.AST):
        return found if pattern == code and type(pattern) is type(code) else None
    if type(pattern) is not type(code):
        return None
    for field in pattern._fields:
        if field in ("ctx", "type_comment", "kind"):
            continue
        step = match(getattr(pattern, field, None), getattr(code, field, None), found)
        if step is None:
            return None
        found = step
    return found


def rest_of(node: Any) -> str | None:
    """The name that takes the rest of a list, if the node is one."""
    value = getattr(node, "value", None)
    starred = isinstance(node, ast.Starred) or (isinstance(node, ast.keyword) and node.arg is None)
    return value.id if starred and isinstance(value, ast.Name) and value.id.startswith("__") else None


def match_list(pattern: list, code: list, found: Found) -> Found | None:
    for i, part in enumerate(pattern):
        if name := rest_of(part):
            return bind(name, code[i:], found)
        if i >= len(code) or (step := match(part, code[i], found)) is None:
            return None
        found = step
    return found if len(pattern) == len(code) else None


def bind(name: str, code: Any, found: Found) -> Found | None:
    if name not in found:
        return {**found, name: code}
    return found if text(found[name]) == text(code) else None


def text(code: Any) -> str:
    """Code without positions and without whether a name is read or written; a name alone is itself."""
    if isinstance(code, list):
        return ", ".join(map(text, code))
    if isinstance(code, ast.keyword):
        return f"{code.arg}={ast.unparse(code.value)}"
    return code if isinstance(code, str) else ast.unparse(code)


# ------------------------------------------------------------ replacing


def fill(new: Any, found: Found) -> Any:
    """The replacement with its free names filled in."""
    if isinstance(new, ast.Name) and new.id in found:
        thing = found[new.id]
        return ast.Name(thing) if isinstance(thing, str) else copy.deepcopy(thing)
    if isinstance(new, str):
        thing = found.get(new, new)
        return thing.id if isinstance(thing, ast.Name) else thing
    if isinstance(new, list):
        filled = [copy.deepcopy(found[name]) if (name := rest_of(x)) in found else [fill(x, found)] for x in new]
        return [x for part in filled for x in part]
    if isinstance(new, ast.AST):
        return type(new)(**{field: fill(getattr(new, field, None), found) for field in new._fields})
    return new


def places(pattern: list[ast.stmt] | ast.expr, scope: ast.AST, found: Found) -> Iterator[tuple[Any, str, Any, Found]]:
    """Every (parent, field, index, what was found) at which the pattern matches within a scope."""
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(pattern, list):
                runs = range(len(value) - len(pattern) + 1) if isinstance(value, list) else ()
                options = ((slice(i, i + len(pattern)), value[i : i + len(pattern)]) for i in runs)
            else:
                options = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, code in options:
                if isinstance(code, list | ast.expr) and (got := match(pattern, code, found)) is not None:
                    yield parent, field, index, got


def substitute(scope: ast.AST, old: str, new: str, given: str = "", nth: int | None = None) -> None:
    """Replaces, in place, the one part of a scope that `old` matches; `given` only says what more names stand for."""
    found: Found = {}
    if given:
        *_, found = one(list(places(parse(given), scope, found)), given, None)
    parent, field, index, found = one(list(places(parse(old), scope, found)), old, nth)
    fresh = fill(parse(new), found)
    if isinstance(index, slice) and isinstance(fresh, ast.expr):
        fresh = [ast.Expr(fresh)]
    if index is None:
        setattr(parent, field, fresh)
    else:
        getattr(parent, field)[index] = fresh


def one(matches: list, pattern: str, nth: int | None) -> Any:
    if nth is None and len(matches) != 1:
        raise LookupError(f"`{pattern}` matches {len(matches)} times")
    if nth is not None and len(matches) <= nth:
        raise LookupError(f"`{pattern}` matches {len(matches)} times, and number {nth} is meant")
    return matches[nth or 0]


# ------------------------------------------------------------ named places


def definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods by qualified name, and assignments of a module by the names they assign."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
                yield prefix + name, node
