"""What one step of every environment gave. Free of JAX: worker processes import it."""

from typing import Any, NamedTuple


class Transition(NamedTuple):
    """One step of every environment, with a leading axis of environments; never written to after it was made."""

    action: Any  # in [-1, 1], as taken
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any  # what the step led to
    obs: Any  # what to act on next: the first observation of a new episode where one ended
    valid: Any  # False where there was no step, only `obs`: a reset or, with `truncated`, a cut of the open episode
