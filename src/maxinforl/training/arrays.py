"""Trees of arrays to and from arrays with names, as files hold them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxinforl.core.types import Spec
from maxinforl.core.update import INIT, stream
from maxinforl.errors import BadInput, UserError
from maxinforl.explore import Strategy
from maxinforl.files import printable


def named(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with the path that leads to it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def agent_arrays(state: Any) -> dict[str, np.ndarray]:
    """Every leaf by the path that leads to it, copied from the device."""
    return {name: np.array(leaf) for name, leaf in named(state)}


def agent_from(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """A tree shaped as `like` filled with saved arrays, or a sentence about what does not fit."""
    names = check_arrays(arrays, like)
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.array(arrays[name]) for name in names])


def check_arrays(arrays: dict[str, np.ndarray], like: Any) -> list[str]:
    """The names of a tree's leaves, in order, where the saved arrays are just those."""
    leaves = named(like)
    names = [name for name, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise BadInput(f"the saved agent does not fit its configuration: '{printable(odd)}' is on one side only")
    for name, leaf in leaves:
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise BadInput(f"the saved agent does not fit its configuration: '{name}' has shape {arrays[name].shape}")
    return names


def agent_shapes(strategy: Strategy, spec: Spec) -> Any:
    """The state of an agent as shapes and types; its configuration may come from any file."""
    try:
        return jax.eval_shape(lambda: strategy.init(stream(0, INIT), spec))  # type: ignore[arg-type]
    except UserError:
        raise
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}".split("\n")[0])
        raise BadInput(f"no agent can be made of the configuration ({why}): correct or restore it") from error
