"""What an environment observes as the one array that an agent reads: a flat vector, or an image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from maxinforl.errors import BadInput, RunFailed


class Part(NamedTuple):
    """A part of an environment's own observation: where it is, and how it becomes numbers."""

    path: tuple[str | int, ...]  # keys and places that lead to it
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()  # of the choices of a discrete part, each one-hot; () for numbers
    starts: tuple[int, ...] = ()  # the least choice of each
    critic_only: bool = False  # whether the actor does not see it

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def size(self) -> int:
        """Entries in the flat vector."""
        return sum(self.sizes) or math.prod(self.shape)

    def table(self) -> dict[str, Any]:
        """As a table of a file."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self._asdict().items()}


class Observation(spaces.Box):
    """The array that an agent reads, and the parts that it is made of; none where it is the observation itself."""

    parts: tuple[Part, ...] = ()


class Encoder:
    """Flattens an observation: parts in the order of the space, depth first, Discrete parts one-hot.

    `critic_only` are names of parts, with commas, that the actor does not see: they come last.
    """

    def __init__(self, space: spaces.Space, critic_only: str | None = None):
        named = list(leaves(space))
        hidden = unseen([dotted(path) for path, _ in named], critic_only) if critic_only else [False] * len(named)
        order = sorted(range(len(named)), key=hidden.__getitem__)
        self.leaves = [named[i] for i in order]
        if not self.leaves:
            raise BadInput("the observation space has no parts: an agent needs something to see")
        only = self.leaves[0][1] if len(self.leaves) == 1 else None
        if only is not None and is_image(only):
            self.space = frame_space(only)
        else:
            low, high = zip(*(bounds(leaf) for _, leaf in self.leaves))
            self.space = Observation(np.concatenate(low), np.concatenate(high), dtype=np.float32)
        self.parts = tuple(part_of(*named[i])._replace(critic_only=hidden[i]) for i in order)
        self.space.parts = () if space.shape == self.space.shape and isinstance(space, spaces.Box) else self.parts
        self.plain = only if isinstance(only, spaces.Box) else None

    def __call__(self, raw: Any) -> np.ndarray:
        if self.plain is not None:
            return self._box(self.plain, dig(raw, self.leaves[0][0])).reshape(self.space.shape)
        return np.concatenate([self._flat(leaf, dig(raw, path)) for path, leaf in self.leaves])

    def _flat(self, part: spaces.Space, raw: Any) -> np.ndarray:
        if isinstance(part, spaces.Box):
            return self._box(part, raw).ravel()
        if not part.contains(raw):
            raise RunFailed(f"the observation holds {raw!r}, but the space says {part}")
        return np.asarray(spaces.flatten(part, raw), np.float32)

    def _box(self, part: spaces.Box, raw: Any) -> np.ndarray:
        array = np.asarray(raw)
        if array.shape != part.shape:
            raise RunFailed(f"the observation has shape {array.shape}, but the space says {part.shape}")
        if array.dtype.kind not in "fiub" or (self.space.dtype == np.uint8 and array.dtype != np.uint8):
            raise RunFailed(f"the observation has dtype {array.dtype}, but the space says {part.dtype}")
        if array.dtype == self.space.dtype:
            return array.copy()  # always a copy: environments reuse their buffers
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is a fault
            return np.array(array, self.space.dtype)


def leaves(space: spaces.Space, path: tuple = ()) -> Iterator[tuple[tuple, spaces.Space]]:
    """Every part of a nested space with the keys that lead to it."""
    if isinstance(space, spaces.Dict):
        inner = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        inner = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, part in inner:
        yield from leaves(part, (*path, key))


def part_of(path: tuple, leaf: spaces.Space) -> Part:
    """A leaf of a nested space."""
    assert leaf.shape is not None
    if isinstance(leaf, spaces.Discrete):
        return Part(path, (), (int(leaf.n),), (int(leaf.start),))
    if isinstance(leaf, spaces.MultiDiscrete):
        sizes, starts = (tuple(int(n) for n in np.ravel(each)) for each in (leaf.nvec, leaf.start))
        return Part(path, leaf.shape, sizes, starts)
    return Part(path, leaf.shape)


def dotted(path: tuple) -> str:
    """The name of a part."""
    return ".".join(map(str, path)) or "observation"


def unseen(names: list[str], critic_only: str) -> list[bool]:
    """Which of the parts are for the critics alone; the name of a Dict stands for all that it holds."""
    keys = [key.strip() for key in critic_only.split(",")]
    belongs = lambda name, key: name == key or name.startswith(f"{key}.")
    for key in keys:
        if not any(belongs(name, key) for name in names):
            raise BadInput(f"--critic-only {key} is no part of the observation, whose parts are {', '.join(names)}")
    hidden = [any(belongs(name, key) for key in keys) for name in names]
    if all(hidden):
        raise BadInput("--critic-only names every part of the observation: leave one for the actor to see")
    return hidden


def dig(raw: Any, path: tuple) -> Any:
    for key in path:
        raw = raw[key]
    return raw


def is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def frame_space(space: spaces.Space) -> Observation:
    """HxWxC for a uint8 image space; HxW becomes HxWx1."""
    assert space.shape is not None
    shape = (*space.shape, 1) if len(space.shape) == 2 else space.shape
    if min(shape) < 1:
        raise BadInput(f"the image observation has shape {shape}, which holds no pixel")
    if shape[0] <= 4 < shape[-1]:
        raise BadInput(f"the image observation has shape {shape}: put the channels last")
    return Observation(0, 255, shape, np.uint8)


def bounds(part: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Flat float32 bounds of one part of a vector observation."""
    if is_image(part):
        raise BadInput("the observation mixes an image with other parts: keep one of them before you pass it in")
    if isinstance(part, spaces.Box):
        if len(part.shape) > 2 and part.dtype == np.uint8:
            raise BadInput(
                f"the observation has shape {part.shape}: give single HxWxC images, which --frame-stack puts together"
            )
        if len(part.shape) > 2:
            raise BadInput(f"the observation is a {part.dtype} image of shape {part.shape}: images must be uint8")
        return part.low.ravel().astype(np.float32), part.high.ravel().astype(np.float32)
    if not isinstance(part, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise BadInput(f"observations of kind {type(part).__name__} cannot be flattened into a vector")
    size = spaces.flatdim(part)
    return np.zeros(size, np.float32), np.ones(size, np.float32)
