"""Prior data: transitions from elsewhere, such as demonstrations, of which every batch of an agent has a share.

They are kept in a second replay of one lane, so that sampling and n-step returns are those of the agent's own.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box

from maxinforl import files
from maxinforl.envs.wrapper import rescale
from maxinforl.errors import BadInput
from maxinforl.replay import LAST, TERMINATED, TRUNCATED, Replay
from maxinforl.spaces import Spaces

SEE = "your-own.md#demonstrations-and-other-prior-data"
SLACK = 1e-4  # by which rounding may lead an action out of its limits, in half widths of them
NPZ = {  # the columns of a file, by those of a `Prior`
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_obs": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
}


@dataclass(frozen=True, eq=False)
class Prior:
    """Transitions in the order of their episodes, one a row, with actions in the environment's own units.

    An episode ends where it is terminated or truncated, and where the row after does not begin with what a row led to.

    Args:
        obs: [rows, width] what was acted on.
        action: [rows, width] what was done.
        reward: [rows] what it gave.
        next_obs: [rows, width] what it led to.
        terminated: [rows] whether it ended the episode for good, as a goal or a crash does.
        truncated: [rows] whether it was the last before a time limit; by default none was.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray | None = None

    def __post_init__(self):
        truncated = np.zeros(len(np.atleast_1d(self.terminated)), bool) if self.truncated is None else self.truncated
        numbers = {name: column(name, getattr(self, name), 2) for name in ("obs", "action", "next_obs")}
        numbers["reward"] = column("reward", self.reward, 1)
        given = {"terminated": self.terminated, "truncated": truncated}
        flags = {name: flag_column(name, values) for name, values in given.items()}
        for name, array in (numbers | flags).items():
            object.__setattr__(self, name, array)
            if len(array) != len(self.obs):
                raise BadInput(f"the prior data has {len(self.obs)} rows of obs and {len(array)} of {name}", SEE)
        if self.next_obs.shape != self.obs.shape:
            raise BadInput(f"the prior data has obs of {self.obs.shape} and next_obs of {self.next_obs.shape}", SEE)
        if len(self) == 0:
            raise BadInput("the prior data holds no transition", SEE)

    def __len__(self) -> int:
        return len(self.obs)

    @cached_property
    def ends(self) -> np.ndarray:
        """Of every row 0, TERMINATED, or TRUNCATED where its episode goes no further."""
        apart = np.append((self.next_obs[:-1] != self.obs[1:]).any(1), True)
        return np.where(self.terminated, TERMINATED, np.where(apart | self.truncated, TRUNCATED, 0)).astype(np.uint8)  # type: ignore[operator]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that it holds."""
        found = sha256()
        for name in NPZ:
            array = getattr(self, name)
            found.update(f"{name}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    def save(self, path: str | Path) -> None:
        """Writes an .npz file that `load_prior` and `--prior-data` read.

        Args:
            path: the file, whose name ends in .npz.
        """
        check_npz(path)
        buffer = io.BytesIO()
        np.savez(buffer, **{theirs: getattr(self, ours) for ours, theirs in NPZ.items()})  # type: ignore[arg-type]
        files.write_atomic(path, [buffer.getbuffer()])


def check_npz(path: str | Path) -> None:
    """Refuses a file that `Prior.save` could not write, before there is something to be written."""
    path = Path(path)
    if path.suffix != ".npz" or path.is_dir():
        raise BadInput(f"{files.printable(path)} is not the name of an .npz file: give one that ends in .npz")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{files.printable(path)} lies in no directory that is there: make it first")


def column(name: str, values: Any, axes: int) -> np.ndarray:
    """A column as float32, with numbers that are finite."""
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise BadInput(f"{name} of the prior data is not an array of numbers", SEE) from None
    if array.ndim != axes:
        wanted = "[rows]" if axes == 1 else "[rows, width]"
        raise BadInput(f"{name} of the prior data has shape {array.shape}, and must be {wanted}", SEE)
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(1)))
        raise BadInput(f"{name} of the prior data is not finite in row {row}: mend or drop that row", SEE)
    return array


def flag_column(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise BadInput(f"{name} of the prior data must be true or false (1 or 0) in every row", SEE)
    return array.astype(bool)


# ------------------------------------------------------------ in an environment


def in_units(prior: Prior, spaces: Spaces, env: str) -> Prior:
    """Prior data with actions in [-1, 1], by the limits of an environment; refused where it is of another one."""
    if spaces.observation.dtype == np.uint8:
        raise BadInput(f"prior data are vectors, and {env} gives images: leave --prior-data out", SEE)
    for what, array, box in (("observations", prior.obs, spaces.observation), ("actions", prior.action, spaces.action)):
        if array.shape[1:] != box.shape:
            raise BadInput(
                f"the prior data has {what} of {array.shape[1]} numbers, and {env} has {box.shape[0]}: use data of "
                "this environment",
                SEE,
            )
    return replace(prior, action=to_unit(prior.action, spaces.action, env))


def to_unit(action: np.ndarray, box: Box, env: str) -> np.ndarray:
    """What `rescale` maps onto native actions."""
    centre, half = (box.high / 2 + box.low / 2), (box.high / 2 - box.low / 2)
    unit = ((action - centre) / np.where(half > 0, half, 1)).astype(np.float32)
    outside = np.abs(unit) > 1 + SLACK
    if outside.any():
        row, i = np.argwhere(outside)[0]
        raise BadInput(
            f"the prior data has an action of {action[row, i]:g} in row {row} where {env} allows {box.low[i]:g} to "
            f"{box.high[i]:g}: give actions in the environment's own units",
            SEE,
        )
    return np.clip(unit, -1, 1)


def part_names(env: Any) -> list[str] | None:
    """Names of the parts of an environment's observations, in order, where it says so."""
    parts = getattr(getattr(env, "unwrapped", None), "observation_parts", None) or getattr(
        env, "observation_parts", None
    )
    return None if parts is None else [name for name, _ in parts]


# ------------------------------------------------------------ to and from a replay


def as_replay(prior: Prior) -> Replay:
    """A replay of one lane that holds prior data; after the last row of an episode comes what it led to."""
    ends = prior.ends
    ended = np.flatnonzero(ends)
    row = np.arange(len(prior)) + np.cumsum(ends > 0) - (ends > 0)  # of each transition
    rows = len(prior) + len(ended) + 1  # the last is that of the head
    first = np.concatenate([[0], ended[:-1] + 1])
    steps = np.arange(len(prior)) - np.repeat(first, np.diff(np.append(first, len(prior))))

    def filled(values: np.ndarray, after: Any) -> jax.Array:
        whole = np.zeros((1, rows, *values.shape[1:]), values.dtype)
        whole[0, row], whole[0, row[ended] + 1] = values, after
        return jnp.array(whole)

    starts = np.zeros((1, rows), np.int32)
    starts[0, : len(row)] = row
    return Replay(
        obs=filled(prior.obs, prior.next_obs[ended]),
        action=filled(prior.action, 0),
        reward=filled(prior.reward, 0),
        end=filled(ends, LAST),
        age=filled(steps.astype(np.int32), steps[ended] + 1),
        head=jnp.array([rows - 1], jnp.int32),
        starts=jnp.array(starts),
        pushed=jnp.array([len(row)], jnp.int32),
        popped=jnp.zeros(1, jnp.int32),
        stack=1,
    )


def from_replay(replay: Replay, action: Box) -> Prior:
    """All transitions of a replay, environment by environment, with actions in the units of a box.

    Episodes that are still open are cut where they are.
    """
    if replay.obs.dtype == jnp.uint8:
        raise BadInput("prior data are vectors, and this replay holds images: save the agent instead", SEE)
    obs, action_column, reward, end, starts = (
        np.array(x) for x in (replay.obs, replay.action, replay.reward, replay.end, replay.starts)
    )
    first, last, rows = np.array(replay.popped), np.array(replay.pushed), replay.rows
    head = [starts[i, np.arange(first[i], last[i]) % rows] for i in range(len(first))]
    lane = np.repeat(np.arange(len(first)), last - first)
    if len(lane) == 0:
        raise BadInput("the replay holds no transition yet: call learn() first")
    row = np.concatenate(head)
    at, after = (lane, row % rows), (lane, (row + 1) % rows)
    newest = np.append(lane[1:] != lane[:-1], True)
    ends = end[at]
    native = np.asarray(rescale(action)(action_column[at]), np.float32)
    open_end = newest & (ends == 0)
    return Prior(obs[at], native, reward[at], obs[after], ends == TERMINATED, (ends == TRUNCATED) | open_end)


class EpisodeRecorder:
    """Episodes as an evaluation plays them, one environment a lane."""

    def __init__(self):
        self.obs: dict[int, np.ndarray] = {}
        self.rows: dict[int, list[tuple]] = {}

    def begin(self, lane: int, obs: np.ndarray) -> np.ndarray:
        """The first observation of a lane, given back; what it played before is forgotten."""
        self.obs[lane], self.rows[lane] = obs.copy(), []
        return obs

    def add(
        self, lane: int, action: np.ndarray, reward: float, obs: np.ndarray, terminated: bool, truncated: bool
    ) -> None:
        self.rows[lane].append((self.obs[lane], action.copy(), reward, obs.copy(), terminated, truncated))
        self.obs[lane] = obs.copy()

    def prior(self) -> Prior:
        rows = [row for lane in sorted(self.rows) for row in self.rows[lane]]
        return Prior(*(np.array(values) for values in zip(*rows)))
