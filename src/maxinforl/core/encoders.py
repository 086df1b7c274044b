"""What turns an observation into the vector that actor, critics and intrinsic models read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap

from maxinforl.core.layout import Parts
from maxinforl.core.networks import RELU_GAIN, Dense, LayerNorm, initial_weight
from maxinforl.core.types import Batch, LatentSpec, Spec
from maxinforl.errors import BadInput

KERNEL, STRIDES, FILTERS = 3, (2, 1, 1, 1), 32
EMBEDDING = FILTERS  # entries of the pooled features: windows of the whole flattening come out even at any image size
SHIFT = 4  # pixels an image may move by when augmented
IN_CACHE = 16 * 48 * 48  # pixels whose features in all layers fit into a CPU's cache
LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class States:
    """The observation itself: nothing to learn, nothing to augment."""

    pixels = False

    def init(self, key: Array, spec: Spec):
        return ()

    def features(self, params, obs: Array) -> Array:
        return obs

    def trunk_init(self, key: Array, spec: Spec):
        return ()

    def trunk(self, params, features: Array) -> Array:
        return features

    def linear(self, params, features: Array) -> tuple[Array, ...]:
        return ()

    def extra(self, features: Array) -> Array:
        return features[..., :0]

    def latents(self, spec: Spec) -> LatentSpec:
        if spec.pixels:
            sizes = " and ".join(f"{shape[0]}x{shape[1]}" for shape in spec.images)
            raise BadInput(f"this agent reads vectors, and the observations are images of {sizes}: use drq")
        return LatentSpec(spec.obs[0], spec.action, 0, delta=True)

    def augment(self, batch: Batch, key: Array) -> Batch:
        return batch


@dataclass(frozen=True)
class Pixels:
    """uint8 images through convolutions that actor and critics share; each has a projection of its own."""

    latent: int = 50
    per_channel: bool = False  # pool every filter over the image instead of 32 equal parts of the flattened features

    pixels = True

    def __post_init__(self):
        if self.latent < 1:
            raise BadInput(f"base.encoder.latent must be at least 1, not {self.latent}")

    def init(self, key: Array, spec: Spec) -> Any:
        """Convolutions; of every image its own where there are images and vectors."""
        if spec.layout:
            keys = jax.random.split(key, len(spec.images))
            return tuple(convolutions(k, shape[-1]) for k, shape in zip(keys, spec.images))
        return convolutions(key, spec.obs[-1])

    def features(self, params: Any, obs: Any) -> Any:
        if isinstance(obs, Parts):
            return Parts(tuple(map(self.features, params, obs.images)), obs.vector)
        if obs.dtype != jnp.uint8:
            raise BadInput(f"images must be uint8 from 0 to 255, and these are {obs.dtype}")
        return in_slices(partial(_features, params), obs)

    def trunk_init(self, key: Array, spec: Spec) -> Any:
        if spec.layout:
            keys = jax.random.split(key, len(spec.images))
            return tuple(Projection(k, flattened(shape), self.latent) for k, shape in zip(keys, spec.images))
        return Projection(key, flattened(spec.obs), self.latent)

    def trunk(self, params: Any, features: Any) -> Array:
        """The latent of every image, and the vector beside them."""
        if isinstance(features, Parts):
            return jnp.concatenate([*map(self.trunk, params, features.images), features.vector], -1)
        return params(features)

    def linear(self, params: Any, features: Any) -> tuple[Array, ...]:
        """Outputs of the trunk's dense layers, before anything follows them."""
        if isinstance(features, Parts):
            return tuple(p.dense(x) for p, x in zip(params, features.images))
        return (params.dense(features),)

    def extra(self, features: Any) -> Array:
        """The 32-entry embedding: maxima over 32 equal windows of the features, which are in h-w-c order."""
        if isinstance(features, Parts):
            return jnp.concatenate([self.extra(x) for x in features.images], -1)
        lead = features.shape[:-1]
        if self.per_channel:
            return features.reshape(*lead, -1, FILTERS).max(-2)
        return features.reshape(*lead, EMBEDDING, -1).max(-1)

    def latents(self, spec: Spec) -> LatentSpec:
        if not spec.images:
            raise BadInput(f"this agent reads images, and the observation has the shape {spec.obs}: use pixels/...")
        count = len([flattened(shape) for shape in spec.images])
        z = count * self.latent + spec.vector
        return LatentSpec(z, spec.action, count * EMBEDDING, delta=False, vector=spec.vector)

    def augment(self, batch: Batch, key: Array) -> Batch:
        """One randomly shifted view of every image, with draws of its own."""
        k_obs, k_one, k_nstep = jax.random.split(key, 3)
        view = lambda backup, k: backup._replace(next_obs=moved(backup.next_obs, k))
        nstep = None if batch.nstep is None else view(batch.nstep, k_nstep)
        return batch._replace(obs=moved(batch.obs, k_obs), one=view(batch.one, k_one), nstep=nstep)


def flattened(shape: tuple[int, ...]) -> int:
    """Entries of an image's features."""
    height, width = shape[:2]
    for stride in STRIDES:
        height, width = (height - KERNEL) // stride + 1, (width - KERNEL) // stride + 1
    if min(height, width) < 1:
        raise BadInput(
            f"images of {shape[0]}x{shape[1]} are too small for the encoder: 15x15 is the least, 84x84 is usual"
        )
    return height * width * FILTERS


def convolutions(key: Array, channels: int) -> tuple[Conv, ...]:
    inputs = (channels, *(FILTERS for _ in STRIDES[1:]))
    return tuple(Conv(k, c) for k, c in zip(jax.random.split(key, len(STRIDES)), inputs))


def moved(obs: Any, key: Array) -> Any:
    """Observations with their images shifted, each with draws of its own."""
    if not isinstance(obs, Parts):
        return shifted(obs, key)
    keys = jax.random.split(key, max(1, len(obs.images)))
    return obs._replace(images=tuple(map(shifted, obs.images, keys)))


class Conv(eqx.Module):
    weight: Array
    bias: Array

    def __init__(self, key: Array, channels: int):
        weight = initial_weight("orthogonal", key, KERNEL * KERNEL * channels, FILTERS, RELU_GAIN)
        self.weight, self.bias = weight.reshape(KERNEL, KERNEL, channels, FILTERS), jnp.zeros(FILTERS, jnp.float32)


class Projection(eqx.Module):
    dense: Dense
    norm: LayerNorm

    def __init__(self, key: Array, width: int, latent: int):
        self.dense, self.norm = Dense(key, width, latent, init="lecun"), LayerNorm(latent)

    def __call__(self, features: Array) -> Array:
        return jnp.tanh(self.norm(self.dense(features)))


def _features(params: tuple[Conv, ...], images: Array) -> Array:
    x = images.astype(jnp.float32) / 255
    for layer, stride in zip(params, STRIDES):
        x = jax.nn.relu(convolve(x, layer.weight, stride) + layer.bias)  # type: ignore[operator]
    return x.reshape(x.shape[0], -1)


def in_slices(function: Callable[[Array], Array], images: Array) -> Array:
    """`function` of the images; on a CPU a few at a time, so that all layers' outputs stay in the cache.

    Five times as fast as the whole batch at once for 84x84 images, gradients included.
    """
    count, height, width = images.shape[:3]
    few = max(n for n in range(1, max(1, IN_CACHE // (height * width)) + 1) if count % n == 0)
    if few == count:
        return function(images)

    def sliced(images: Array) -> Array:
        return jax.lax.map(function, images.reshape(-1, few, *images.shape[1:])).reshape(count, -1)

    return jax.lax.platform_dependent(images, cpu=sliced, default=function)


def shifted(images: Array, key: Array) -> Array:
    """Every image padded with its border and cropped back, each at a place of its own."""
    count, height, width = images.shape[:3]
    down, right = jax.random.randint(key, (2, count, 1), -SHIFT, SHIFT + 1)
    row, column = jnp.clip(jnp.arange(height) + down, 0, height - 1), jnp.clip(jnp.arange(width) + right, 0, width - 1)
    return jax.vmap(lambda image, i, j: image[i][:, j])(images, row, column)


def in_turn(function: Callable) -> Callable:
    """On a CPU seeds are convolved one after the other: as groups of one convolution they take half as long again."""
    return partial(jax.lax.platform_dependent, cpu=sequential_vmap(partial(function, spare=1)), default=function)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(x: Array, weight: Array, stride: int) -> Array:
    """Unpadded convolution whose gradients are convolutions in the same layout.

    JAX's own use layouts that XLA's CPU compiler only repairs outside loops: in a scan they take 20 times as long.
    """
    return in_turn(partial(_windows, window_strides=(stride, stride)))(x, weight)


def _windows(x: Array, kernel: Array, spare: int = 0, window_strides: tuple[int, int] = (1, 1), **dilation) -> Array:
    """Unpadded convolution, computed with `spare` more columns that are cut off.

    XLA's convolutions on a CPU are up to twice as fast with any padding at all, and only then use several cores.
    """
    padding = ((0, 0), (0, spare * window_strides[1]))
    found = jax.lax.conv_general_dilated(x, kernel, window_strides, padding, dimension_numbers=LAYOUT, **dilation)
    return found[:, :, : found.shape[2] - spare]


def _convolve_fwd(x: Array, weight: Array, stride: int):
    return convolve(x, weight, stride), (x, weight)


def _convolve_bwd(stride: int, saved: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, weight = saved
    unseen = [(size - KERNEL) % stride for size in x.shape[1:3]]  # rows and columns no window reaches
    border = [(KERNEL - 1, KERNEL - 1 + more) for more in unseen]

    @in_turn
    def by_weight(x: Array, slope: Array, spare: int = 0) -> Array:
        seen = x[:, : x.shape[1] - unseen[0], : x.shape[2] - unseen[1]]
        found = _windows(seen.transpose(3, 1, 2, 0), slope.transpose(1, 2, 0, 3), spare, rhs_dilation=(stride, stride))
        return found.transpose(1, 2, 0, 3)

    @in_turn
    def by_x(slope: Array, weight: Array, spare: int = 0) -> Array:  # padded anyway
        turned, dilation = weight[::-1, ::-1].transpose(0, 1, 3, 2), (stride, stride)
        return jax.lax.conv_general_dilated(slope, turned, (1, 1), border, dilation, dimension_numbers=LAYOUT)

    return by_x(slope, weight), by_weight(x, slope)


convolve.defvjp(_convolve_fwd, _convolve_bwd)
