"""Replay as rows, not transitions: one observation a row, successors, stacks and returns rebuilt by index.

A ring of rows per environment. The row at `head` holds the observation to act on next; `add` completes it with
the action, reward and end that followed, writes the successor one row on, and moves the head there. Where an episode
ended, its last observation keeps a row that is never a start and the head moves past it to the new episode's
first. `starts` lists the rows a transition may start from, oldest first, so sampling is uniform without rejection.

Where an environment broke, its open episode is cut: the transition before becomes a truncation, the row at `head` its
last observation, and the head moves on to what the next episode begins with.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from maxinforl.core.layout import Layout
from maxinforl.core.types import Backup, Batch
from maxinforl.transition import Transition

TRUNCATED, TERMINATED, LAST = 1, 2, 3  # ends of a transition; LAST marks the row that follows one


class Replay(eqx.Module):
    obs: Array  # [lanes, rows, *frame]
    action: Array
    reward: Array
    end: Array  # 0, TRUNCATED, TERMINATED or LAST
    age: Array  # steps since the episode began
    head: Array  # [lanes] rows ever passed; the row is head % rows
    starts: Array  # [lanes, rows] ring of heads that were completed
    pushed: Array  # [lanes] starts ever appended
    popped: Array  # [lanes] starts ever dropped
    stack: int = eqx.field(static=True)
    layout: Layout | None = eqx.field(static=True, default=None)  # of rows of bytes that hold images and vectors

    @staticmethod
    def create(
        lanes: int,
        rows: int,
        frame: tuple[int, ...],
        dtype,
        actions: int,
        stack: int = 1,
        layout: Layout | None = None,
    ) -> Replay:
        zeros = lambda *shape, dtype=jnp.int32: jnp.zeros((lanes, *shape), dtype)
        return Replay(
            zeros(rows, *frame, dtype=dtype),
            zeros(rows, actions, dtype=jnp.float32),
            zeros(rows, dtype=jnp.float32),
            zeros(rows, dtype=jnp.uint8),
            zeros(rows),
            zeros(),
            zeros(rows),
            zeros(),
            zeros(),
            stack,
            layout,
        )

    @property
    def rows(self) -> int:
        return self.obs.shape[1]

    @property
    def lanes(self) -> Array:
        return jnp.arange(self.obs.shape[0])

    def begin(self, obs: Array) -> Replay:
        """The first observation of all."""
        return eqx.tree_at(lambda r: r.obs, self, self.obs.at[:, 0].set(obs))

    def add(self, t: Transition) -> Replay:
        lane, rows = self.lanes, self.rows
        before, here, after = ((self.head + i) % rows for i in (-1, 0, 1))
        age = self.age[lane[:, None], jnp.stack([here, after], 1)][:, 0]  # two rows for the reason given in `_put`
        ended = jnp.where(t.terminated, TERMINATED, jnp.where(t.truncated, TRUNCATED, 0))
        over, cut = t.valid & (ended > 0), ~t.valid & t.truncated & (age > 0)
        head = self.head + jnp.where(t.valid, 1 + over, cut)
        now, always = head % rows, jnp.ones_like(cut)
        starts = _put(self.starts, (self.pushed % rows, self.head, t.valid))
        # A start leaves when the oldest frame of its stack is overwritten; the head moves two rows at most.
        oldest, popped = head - rows + self.stack - 1, self.popped
        for _ in range(2):
            popped = popped + ((popped < self.pushed) & (starts[lane, popped % rows] <= oldest))
        done, cut_before = (here, jnp.where(cut, LAST, ended), t.valid | cut), (before, TRUNCATED, cut)
        return Replay(
            _put(self.obs, (after, t.next_obs, over), (now, t.obs, always)),
            _put(self.action, (here, t.action, t.valid)),
            _put(self.reward, (here, t.reward, t.valid)),
            _put(self.end, done, cut_before, (after, LAST, over), (now, 0, always)),
            _put(self.age, (after, age + 1, t.valid), (now, 0, over | cut)),
            head,
            starts,
            self.pushed + t.valid,
            popped,
            self.stack,
            self.layout,
        )

    def frames(self, lane: Array, head: Array) -> Any:
        """The observation at a row: the last `stack` frames of its episode on the channel axis, oldest first."""
        if self.layout is not None:
            return self.layout.read(self.stacked(lane, head))
        return self.stacked(lane, head)

    def stacked(self, lane: Array, head: Array) -> Array:
        """As it is kept: images on their last axis, and rows of bytes too."""
        if self.stack == 1:
            return self.obs[lane, head % self.rows]
        age = self.age[lane, head % self.rows]
        back = jnp.minimum(jnp.arange(self.stack)[::-1], age[..., None])
        frames = self.obs[lane[..., None], (head[..., None] - back) % self.rows]
        axis = frames.ndim - (self.obs.ndim - 2) - 1
        return jnp.concatenate([jax.lax.index_in_dim(frames, i, axis, False) for i in range(self.stack)], -1)

    def latest(self) -> Any:
        """What to act on now, one observation per environment."""
        return self.frames(self.lanes, self.head)

    def draw(self, key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Environment and row of transitions drawn with replacement, each alike to one part in 2**32 / their number."""
        count = self.pushed - self.popped
        bound = jnp.cumsum(count)
        index = (jax.random.bits(key, shape) % jnp.maximum(bound[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        lane = (index[..., None] >= bound).sum(-1)
        nth = index - (bound - count)[lane]
        return lane, self.starts[lane, (self.popped[lane] + nth) % self.rows]

    def sample(self, key: Array, shape: tuple[int, ...], gamma: float, nstep: int = 1) -> Batch:
        lane, row = self.draw(key, shape)
        nth = self.backup(lane, row, gamma, nstep) if nstep > 1 else None
        obs, action = self.frames(lane, row), self.action[lane, row % self.rows]
        return Batch(obs, action, self.backup(lane, row, gamma, 1), nth, jnp.full(shape, gamma, jnp.float32))

    def recent(self, count: int, gamma: float) -> Batch:
        """The newest transitions, over all environments alike; the oldest repeats where there are fewer."""
        nth = jnp.arange(count)
        lane = nth % self.obs.shape[0]
        place = jnp.maximum(self.pushed[lane] - 1 - nth // self.obs.shape[0], self.popped[lane])
        row = self.starts[lane, place % self.rows]
        obs, action = self.frames(lane, row), self.action[lane, row % self.rows]
        return Batch(obs, action, self.backup(lane, row, gamma, 1), None, jnp.full(count, gamma, jnp.float32))

    def backup(self, lane: Array, row: Array, gamma: float, nstep: int) -> Backup:
        """Up to n rewards from a row: fewer where the episode ended or the newest transition was reached."""
        newest = self.starts[lane, (self.pushed[lane] - 1) % self.rows]
        reward, discount = jnp.zeros(row.shape, jnp.float32), jnp.ones(row.shape, jnp.float32)
        going, last = jnp.ones(row.shape, bool), row
        for j in range(nstep):
            at = (row + j) % self.rows
            reward = reward + jnp.where(going, discount * self.reward[lane, at], 0)
            discount = jnp.where(going, discount * gamma, discount)
            last = jnp.where(going, row + j, last)
            going = going & (self.end[lane, at] == 0) & (row + j != newest)
        bootstrap = self.end[lane, last % self.rows] != TERMINATED
        return Backup(reward, discount * bootstrap, self.frames(lane, last + 1))

    def grow(self, rows: int) -> Replay:
        """More rows for a ring that has not wrapped yet."""
        more = rows - self.rows
        if more <= 0 or int(np.asarray(self.head).max()) >= self.rows - 2:
            return self
        pad = lambda column: jnp.pad(column, [(0, 0), (0, more)] + [(0, 0)] * (column.ndim - 2))
        columns = lambda r: (r.obs, r.action, r.reward, r.end, r.age, r.starts)
        return eqx.tree_at(columns, self, tuple(pad(c) for c in columns(self)))


def _put(column: Array, *writes: tuple[Array, Any, Array]) -> Array:
    """A column with (row, value, where) written for every lane, no row twice.

    All in one scatter, and never of one index: XLA turns that into an update of a slice, fuses it with what reads the
    column next, and copies the whole column at every step.
    """
    lanes, rows, *_ = column.shape
    nowhere = (jnp.full(lanes, rows), 0, jnp.zeros(lanes, bool))
    writes = (*writes, nowhere) if len(writes) == 1 else writes
    row = jnp.stack([jnp.where(where, row, rows + i) for i, (row, _, where) in enumerate(writes)], 1)
    like = lambda value: jnp.broadcast_to(jnp.asarray(value, column.dtype), (lanes, *column.shape[2:]))
    value = jnp.stack([like(value) for _, value, _ in writes], 1)
    return column.at[jnp.arange(lanes)[:, None], row].set(value, mode="drop", unique_indices=True)


def row_bytes(frame: tuple[int, ...], itemsize: int, actions: int) -> int:
    """Memory of one stored step: the frame, the action, reward, end, age and its place in `starts`."""
    return int(np.prod(frame)) * itemsize + 4 * actions + 4 + 1 + 4 + 4
