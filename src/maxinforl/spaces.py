"""What an agent observes and does, to and from files."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from maxinforl import runner
from maxinforl.core.layout import Layout, part_bytes
from maxinforl.core.types import Spec
from maxinforl.envs.observation import Observation, Part
from maxinforl.errors import BadInput
from maxinforl.settings import Settings

FRAMES = "the last {} frames on the last axis, oldest first (or single frames with episode_start=)"
LARGEST = 2**24  # numbers in an observation that a file may claim


class Spaces(NamedTuple):
    """A frame, and an action in the environment's own units."""

    observation: Box
    action: Box

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of the environment's own observation, in order; none where the agent reads it as it is."""
        return getattr(self.observation, "parts", ())

    @property
    def seen(self) -> tuple[Part, ...]:
        """The parts that the actor sees."""
        return tuple(part for part in self.parts if not part.critic_only)

    def stack(self, settings: Settings) -> int:
        """Frames of an observation: images are stacked, vectors are not."""
        return settings.frame_stack if self.observation.dtype == np.uint8 else 1

    def spec(self, settings: Settings) -> Spec:
        """Shapes of what an agent observes and does."""
        shape, stack = self.observation.shape, self.stack(settings)
        hidden = sum(part.size for part in self.parts if part.critic_only and not part.image)
        return Spec((*shape[:-1], shape[-1] * stack), self.action.shape[0], hidden, self.layout(stack))

    @property
    def many(self) -> bool:
        """Whether there are images and vectors, or several images, which lie in a row of bytes."""
        return self.observation.dtype == np.uint8 and len(self.observation.shape) == 1

    def layout(self, stack: int) -> Layout | None:
        """Of that row of bytes."""
        if not self.many:
            return None
        return Layout(tuple(p.array for p in self.parts), stack, sum(p.critic_only for p in self.parts))

    def batch(self, observation: Any, settings: Settings, whole: bool = False) -> tuple[np.ndarray, bool]:
        """Observations, the environment's own or flat, as a batch in the agent's type, and whether there was only one.

        Entries for critics alone may be missing, and are 0, unless the `whole` observation is asked for.
        """
        if self.many:
            return self.rows(observation, self.stack(settings), whole)
        of_all, stack = self.spec(settings), self.stack(settings)
        spec, hidden = (of_all, 0) if whole else (of_all.seen, of_all.hidden)
        obs = np.asarray(self.gathered(observation, self.parts if whole else self.seen, of_all.obs))
        if hidden and obs.shape[-1:] == of_all.obs:
            obs = obs[..., :-hidden]
        single = obs.ndim == len(spec.obs)
        batch = obs[None] if single else obs
        if batch.shape[1:] != spec.obs:
            stacked = f", {FRAMES.format(stack)}" if stack > 1 else ""
            raise BadInput(f"an observation has shape {spec.obs}{stacked}, or a batch of them, not {obs.shape}")
        if spec.pixels and obs.dtype != np.uint8:
            raise BadInput(f"images are uint8 from 0 to 255, and these are {obs.dtype}")
        batch = np.array(batch, self.observation.dtype)
        if not np.isfinite(batch).all():
            raise BadInput("the observation holds a number that is not finite: look at where it comes from")
        return np.pad(batch, [(0, 0), (0, hidden)]) if hidden else batch, single

    def frames(self, observation: Any, settings: Settings) -> tuple[np.ndarray, bool] | None:
        """As `batch`, of single frames where an agent stacks several; None where they are not single."""
        try:
            return None if self.stack(settings) == 1 else self.batch(observation, replace(settings, frame_stack=1))
        except BadInput:
            return None

    def rows(self, observation: Any, stack: int, whole: bool) -> tuple[np.ndarray, bool]:
        """As `batch`, of images and vectors: rows of bytes, in which what the actor does not see may be 0."""
        size = (stack * self.observation.shape[0],)
        if isinstance(observation, np.ndarray) and observation.dtype == np.uint8 and observation.shape[-1:] == size:
            return np.atleast_2d(observation), observation.ndim == 1
        given = self.parts if whole else self.seen
        images, vector = self.parted(observation, given, stack)
        count = vector.shape[0] if vector.ndim == 2 else 1
        ends = np.cumsum([part.size for part in given if not part.image])[:-1]
        pictures, numbers, row = iter(images), iter(np.split(vector, ends, -1)), []
        for part in self.parts:
            if part not in given:
                row.append(np.zeros((count, stack, part_bytes(part.array)), np.uint8))
            elif part.image:
                row.append(frames_apart(next(pictures), stack))
            else:
                data = np.ascontiguousarray(next(numbers), np.float32).reshape(count, 1, -1).view(np.uint8)
                row.append(np.repeat(data, stack, 1))
        return np.concatenate(row, -1).reshape(count, -1), vector.ndim == 1

    def parted(self, observation: Any, parts: tuple[Part, ...], stack: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Images and the vector of the environment's own observation, or of a batch of them."""
        try:
            images, vector = runner.parted(observation, [part.table() for part in parts], stack)
        except ValueError as error:
            raise BadInput(str(error)) from None
        if not np.isfinite(vector).all():
            raise BadInput("the observation holds a number that is not finite: look at where it comes from")
        return images, vector

    def gathered(self, observation: Any, parts: tuple[Part, ...], shape: tuple[int, ...]) -> Any:
        """The environment's own observation as the array that an agent reads; such an array passes as it is."""
        try:
            return runner.gathered(observation, [part.table() for part in parts], shape)
        except ValueError as error:
            raise BadInput(str(error)) from None

    def table(self) -> dict[str, Any]:
        """As a table of a file."""
        parts = {"observation_parts": [part.table() for part in self.parts]} if self.parts else {}
        return {
            "observation_shape": list(self.observation.shape),
            "observation_dtype": str(self.observation.dtype),
            "action_low": [float(x) for x in self.action.low],
            "action_high": [float(x) for x in self.action.high],
        } | parts

    def differ_from(self, table: dict[str, Any]) -> bool:
        """Whether a table of a file, which an earlier version may have written, is of other spaces."""
        own = self.table()
        return any(own.get(name) != value for name, value in table.items())

    def check_shapes(self, other: Spaces) -> None:
        """Refuses an environment whose observations or actions have another shape than the agent's."""
        for what, mine, theirs in zip(("observations", "actions"), self, other):
            if mine.shape != theirs.shape:
                raise BadInput(f"this agent has {what} of shape {mine.shape}, and the environment {theirs.shape}")
        if self.parts and other.parts and self.parts != other.parts:
            mine, theirs = (", ".join(part.name for part in each.parts) for each in (self, other))
            raise BadInput(
                f"this agent's observations are {mine}, and the environment's are {theirs}: give its space the same "
                "parts in the same order (an OrderedDict keeps one)"
            )


def frames_apart(image: np.ndarray, stack: int) -> np.ndarray:
    """Stacked images as [batch, stack, bytes]."""
    height, width, channels = image.shape[-3:]
    frames = image.reshape(-1, height, width, stack, channels // stack)
    return np.moveaxis(frames, 3, 1).reshape(len(frames), stack, -1)


def with_before(frames: np.ndarray, before: Any, starts: Any, stack: int) -> np.ndarray:
    """Frames with the ones before them, which are the last of `before`; where an episode starts they are repeated."""
    repeated = np.concatenate([frames] * stack, -1)
    if before is None:
        return repeated
    if getattr(before, "shape", None) != repeated.shape:
        raise BadInput("state= is not what predict returned for the frames before these: pass that, or None at first")
    moved = np.concatenate([before[..., frames.shape[-1] :], frames], -1)
    fresh = np.broadcast_to(np.asarray(starts, bool).reshape(-1), len(frames))
    return np.where(fresh.reshape(-1, *(1,) * (frames.ndim - 1)), repeated, moved)


def read_spaces(table: Any) -> Spaces:
    """Spaces from a table of a file, refused where no environment has such or a shape would take much memory."""
    names = ("observation_shape", "observation_dtype", "action_low", "action_high")
    found: list[Any] = [table.get(name) for name in names] if isinstance(table, dict) else [None] * 4
    shape, dtype, low, high = found
    if not (_is_shape(shape) and isinstance(dtype, str) and _is_range(low, high)):
        raise BadInput("the saved spaces are damaged: restore the file that holds them from a copy")
    shape, image = tuple(shape), dtype == "uint8"
    observation = Observation(0, 255, shape, np.uint8) if image else Observation(-np.inf, np.inf, shape, np.float32)
    observation.parts = read_parts(table.get("observation_parts", []), shape)
    return Spaces(observation, Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32))


def read_parts(tables: Any, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Parts of an observation from a file, refused where they do not make up an array of this shape."""
    try:
        parts = tuple(
            Part(
                *(tuple(t[name]) for name in ("path", "shape", "sizes", "starts")),
                critic_only=t["critic_only"] is True,
                image=t.get("image") is True,
            )
            for t in tables
        )
        whole = all(type(n) is int for p in parts for n in (*p.shape, *p.sizes, *p.starts)) and all(
            len(p.sizes) == len(p.starts) and all(isinstance(key, (str, int)) for key in p.path) for p in parts
        )
        several = len(parts) > 1 and any(p.image for p in parts)
        entries = sum(part_bytes(p.array) if several else p.size for p in parts)
        whole = whole and all(len(p.shape) in (2, 3) and not p.sizes for p in parts if p.image)
    except (KeyError, TypeError):
        whole, entries = False, 0
    if not whole or (tables and entries != math.prod(shape)):
        raise BadInput("the saved spaces are damaged: restore the file that holds them from a copy")
    return parts


def _is_shape(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) <= 32 and all(type(n) is int and n > 0 for n in value)
    return whole and math.prod(value) <= LARGEST


def _is_range(low: Any, high: Any) -> bool:
    """Whether they are the bounds of actions, as numbers that float32 holds."""
    if not (isinstance(low, list) and isinstance(high, list) and 0 < len(low) == len(high)):
        return False
    numbers = all(type(x) in (int, float) and abs(x) <= np.finfo(np.float32).max for x in (*low, *high))
    return numbers and all(a <= b for a, b in zip(low, high))


def read_clock(table: Any) -> dict[str, int]:
    """Counters from a table or the arrays of a file."""
    try:
        counts = {name: int(table[name]) for name in ("step", "update", "total")}
    except (KeyError, TypeError, ValueError, OverflowError):
        counts = {"step": -1}
    if not all(0 <= count < 2**31 for count in counts.values()):
        raise BadInput("the saved counters are damaged: restore the file that holds them from a copy")
    return counts
