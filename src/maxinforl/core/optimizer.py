"""One step of an Optax optimiser on any tree of arrays."""

from __future__ import annotations

from typing import Any

import optax


def descend(optimizer: Any, grads: Any, opt: Any, params: Any) -> tuple[Any, Any]:
    """Parameters and optimiser state after one step."""
    change, opt = optimizer.update(grads, opt, params)
    return optax.apply_updates(params, change), opt
