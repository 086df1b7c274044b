"""What an environment observes as the one array that an agent reads: a flat vector, an image, or both in bytes."""

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
    image: bool = False

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def size(self) -> int:
        """Entries in the flat vector."""
        return sum(self.sizes) or math.prod(self.shape)

    @property
    def array(self) -> tuple[int, ...]:
        """Shape of what networks read of it: height, width and channels of an image, else a vector."""
        return (*self.shape, 1)[:3] if self.image else (self.size,)

    def table(self) -> dict[str, Any]:
        """As a table of a file."""
        found = {name: list(v) if isinstance(v, tuple) else v for name, v in self._asdict().items()}
        return found if found.pop("image") is False else found | {"image": True}


class Observation(spaces.Box):
    """The array that an agent reads, and the parts that it is made of; none where it is the observation itself.

    Images and vectors together are a row of bytes, part after part: pixels as they are, numbers as float32.
    """

    parts: tuple[Part, ...] = ()


class Encoder:
    """Flattens an observation: parts in the order of the space, depth first, Discrete parts one-hot.

    With an image among several parts the result is bytes; one image alone stays an image.
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
        self.space = array_space([leaf for _, leaf in self.leaves])
        self.parts = tuple(part_of(*named[i])._replace(critic_only=hidden[i]) for i in order)
        self.bytes = only is None and self.space.dtype == np.uint8
        self.space.parts = () if space.shape == self.space.shape and isinstance(space, spaces.Box) else self.parts
        self.plain = only if isinstance(only, spaces.Box) else None

    def __call__(self, raw: Any) -> np.ndarray:
        if self.plain is not None:
            return box_array(self.plain, dig(raw, self.leaves[0][0])).reshape(self.space.shape)
        found = [self._flat(leaf, dig(raw, path)) for path, leaf in self.leaves]
        return np.concatenate([as_bytes(x) for x in found] if self.bytes else found)

    def _flat(self, part: spaces.Space, raw: Any) -> np.ndarray:
        if isinstance(part, spaces.Box):
            return box_array(part, raw).ravel()
        if not part.contains(raw):
            raise RunFailed(f"the observation holds {raw!r}, but the space says {part}")
        return np.asarray(spaces.flatten(part, raw), np.float32)


def array_space(parts: list[spaces.Space]) -> Observation:
    """Of the array that the parts of an observation become."""
    if len(parts) == 1 and is_image(parts[0]):
        return frame_space(parts[0])
    low, high = zip(*(bounds(part) for part in parts))
    if not any(map(is_image, parts)):
        return Observation(np.concatenate(low), np.concatenate(high), dtype=np.float32)
    size = sum(lows.size * (1 if is_image(part) else 4) for part, lows in zip(parts, low))
    return Observation(0, 255, (size,), np.uint8)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """A vector in a row of bytes; one that is not finite is a fault, which bytes would hide."""
    if array.dtype == np.uint8:
        return array
    if not np.isfinite(array).all():
        raise RunFailed(f"the observation holds {array[~np.isfinite(array)][0]}, which is not a finite number")
    return array.view(np.uint8)


def box_array(part: spaces.Box, raw: Any) -> np.ndarray:
    """A part in the type that an agent reads: images uint8, all else float32."""
    array, dtype = np.asarray(raw), np.dtype(np.uint8 if is_image(part) else np.float32)
    if array.shape != part.shape:
        raise RunFailed(f"the observation has shape {array.shape}, but the space says {part.shape}")
    if array.dtype.kind not in "fiub" or (dtype == np.uint8 and array.dtype != np.uint8):
        raise RunFailed(f"the observation has dtype {array.dtype}, but the space says {part.dtype}")
    if array.dtype == dtype:
        return array.copy()  # always a copy: environments reuse their buffers
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is a fault
        return np.array(array, dtype)


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
    return Part(path, leaf.shape, image=is_image(leaf))


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
    """Flat float32 bounds of one part of an observation."""
    if is_image(part):
        part = frame_space(part)
        return part.low.ravel(), part.high.ravel()
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
