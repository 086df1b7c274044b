"""Observations of images and vectors: rows of bytes where they are kept, arrays of their own type in networks."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

NUMBER = 4  # bytes of a float32


class Parts(NamedTuple):
    """An observation, or a batch of them, or what an encoder makes of them."""

    images: tuple[Array, ...]  # uint8 [..., height, width, channels], the frames of a stack on the last axis
    vector: Array  # float32 [..., width], of the newest frame


class Layout(NamedTuple):
    """Where the parts of an observation lie in a row of bytes: frames on end, oldest first, in each part after part."""

    parts: tuple[tuple[int, ...], ...]  # shapes: three axes for an image, one for a vector
    stack: int = 1  # frames of the images
    unseen: int = 0  # parts at the end that the actor does not see

    @property
    def frame(self) -> int:
        """Bytes of one frame."""
        return sum(map(part_bytes, self.parts))

    @property
    def images(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the stacked images."""
        return tuple((*shape[:2], shape[2] * self.stack) for shape in self.parts if len(shape) == 3)

    @property
    def width(self) -> int:
        """Numbers of the vector."""
        return sum(shape[0] for shape in self.parts if len(shape) == 1)

    @property
    def seen(self) -> Layout:
        """The parts that the actor sees."""
        return Layout(self.parts[: len(self.parts) - self.unseen], self.stack)

    def read(self, rows: Array) -> Parts:
        """Rows of bytes as images and a vector."""
        frames = rows.reshape(*rows.shape[:-1], self.stack, self.frame)
        images, numbers, begin = [], [], 0
        for shape in self.parts:
            end = begin + part_bytes(shape)
            if len(shape) == 3:
                images.append(stacked_frames(frames[..., begin:end], shape))
            else:
                numbers.append(floats(frames[..., -1, begin:end]))
            begin = end
        return Parts(tuple(images), jnp.concatenate([*numbers, jnp.zeros((*rows.shape[:-1], 0), jnp.float32)], -1))


def part_bytes(shape: tuple[int, ...]) -> int:
    """An image takes a byte a pixel, a vector four a number."""
    return math.prod(shape) if len(shape) == 3 else NUMBER * shape[0]


def stacked_frames(frames: Array, shape: tuple[int, ...]) -> Array:
    """[..., stack, bytes] as [..., height, width, stack * channels]"""
    lead, (height, width, channels) = frames.shape[:-1], shape
    apart = jnp.moveaxis(frames.reshape(*lead, height, width, channels), -4, -2)
    return apart.reshape(*lead[:-1], height, width, lead[-1] * channels)


def floats(data: Array) -> Array:
    """[..., 4 * width] bytes as [..., width] numbers."""
    return jax.lax.bitcast_convert_type(data.reshape(*data.shape[:-1], -1, NUMBER), jnp.float32)
