"""Pictures of simple mechanisms without a graphics library."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Rod(NamedTuple):
    """A line with round ends in a picture that spans [-1, 1] both ways, y up."""

    start: tuple[float, float]
    end: tuple[float, float]
    radius: float
    colour: tuple[int, int, int]


@lru_cache(4)
def _grid(size: int) -> np.ndarray:
    centre = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    return np.stack(np.meshgrid(centre, -centre), -1)


def draw(size: int, rods: list[Rod]) -> np.ndarray:
    """A size x size x 3 uint8 picture, white behind, later rods on top, edges smoothed over one pixel."""
    image = np.full((size, size, 3), 255, np.float32)
    for start, end, radius, colour in rods:
        point, along = _grid(size) - np.asarray(start, np.float32), np.subtract(end, start).astype(np.float32)
        share = np.clip(point @ along / max(float(along @ along), 1e-12), 0, 1)
        distance = np.linalg.norm(point - share[..., None] * along, axis=-1)
        cover = np.clip((radius - distance) * (size / 2) + 0.5, 0, 1)[..., None]
        image += cover * (np.asarray(colour, np.float32) - image)
    return (image + 0.5).astype(np.uint8)
