"""The small tuples that parts of an agent exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from maxinforl.core.layout import Layout, Parts

Metrics = dict[str, Array]


class Spec(NamedTuple):
    """What an agent sees and does: shape of one observation (frame stack included) and the number of actions.

    The last `hidden` entries of a vector are for critics and intrinsic models alone: the actor does not see them.
    An observation of images and vectors is a row of bytes with a `layout`, and its vector's entries hide alike.
    """

    obs: tuple[int, ...]
    action: int
    hidden: int = 0
    layout: Layout | None = None

    @property
    def pixels(self) -> bool:
        return len(self.obs) == 3 or self.layout is not None

    @property
    def images(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the images in an observation."""
        return self.layout.images if self.layout else (self.obs,) if self.pixels else ()

    @property
    def vector(self) -> int:
        """Numbers beside the images, or all of an observation without any."""
        return self.layout.width if self.layout else 0 if self.pixels else self.obs[0]

    def read(self, obs: Array) -> Array | Parts:
        """Observations as networks take them."""
        return self.layout.read(obs) if self.layout else obs

    @property
    def seen(self) -> Spec:
        """What the actor sees."""
        if self.layout:
            seen = self.layout.seen
            return Spec((seen.stack * seen.frame,), self.action, layout=seen)
        return Spec((self.obs[0] - self.hidden,), self.action) if self.hidden else self


class Clock(NamedTuple):
    """Counters every schedule reads: transitions so far, updates so far, transitions planned in all."""

    step: Array
    update: Array
    total: Array


def clock(step: int = 0, update: int = 0, total: int = 0) -> Clock:
    return Clock(jnp.asarray(step, jnp.int32), jnp.asarray(update, jnp.int32), jnp.asarray(total, jnp.int32))


class Backup(NamedTuple):
    """One side of a Bellman equation; `discount` is gamma**k, and 0 after a true termination."""

    reward: Array
    discount: Array
    next_obs: Array


class Batch(NamedTuple):
    obs: Array
    action: Array
    one: Backup
    nstep: Backup | None  # None where n = 1
    gamma: Array  # of one step that did not end, as wide as the batch

    @property
    def task(self) -> Backup:
        """What the task's own critic regresses on."""
        return self.one if self.nstep is None else self.nstep

    @property
    def non_episodic(self) -> Backup:
        """One step that ignores terminations: what non-episodic intrinsic critics use."""
        return self.one._replace(discount=self.gamma)


class Latents(NamedTuple):
    """The inputs and targets of an intrinsic model: never pixels, and constants to every gradient."""

    z: Array
    action: Array
    reward: Array
    next_z: Array
    extra: Array  # zero width for states
    ended: Array | None = None  # whether the transition terminated


class LatentSpec(NamedTuple):
    """Widths of `Latents`; `delta` says whether models predict next_z - z (states) or next_z (pixels).

    The last `vector` entries of latents beside which a vector lies are states, too.
    """

    z: int
    action: int
    extra: int
    delta: bool
    vector: int = 0


Bonus = Callable[[Array, Array], tuple[Array, Any]]


class Imagined(NamedTuple):
    """What a model says follows states and actions, and how much each row counts beside a real one."""

    reward: Array
    next_obs: Array
    weight: Array
    disagreement: Array  # of the model's members, in normalised units


class Imagination(NamedTuple):
    """A model that writes the last `rows` of a critic's batch; `outcome` is (obs, action) -> Imagined."""

    rows: int
    outcome: Callable[[Array, Array], Imagined]


class Shaping(NamedTuple):
    """How a strategy changes the losses of a learner."""

    backup: tuple[Backup | None, ...] = (None,)  # per value channel; None = the task's own
    weight: tuple[Any, ...] = (1.0,)  # how the actor weighs the channels
    entropy: int | None = 0  # the channel that carries the policy's entropy
    bonus: Bonus | None = None  # (z, a) -> (value, aux) on channel 0, differentiable in a
    imagination: Imagination | None = None  # of a model that teaches the task's critics, too


PLAIN = Shaping()
ShapingFn = Callable[[Latents], Shaping]  # of the latents of the batch at hand


class Improvement(NamedTuple):
    """What an actor step knows that a strategy may need: actions, critics per channel, the bonus's aux."""

    action: Array
    value: Array
    aux: Any
