"""Layers whose leaves are all arrays, so that jit, scan, vmap, grad and donation need no ceremony; a gradient step."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

RELU_GAIN = 2**0.5
ACTIVATIONS = {"relu": jax.nn.relu, "silu": jax.nn.silu, "tanh": jnp.tanh}
INITIALISERS = ("orthogonal", "lecun", "xavier")


def orthogonal(key: Array, fan_in: int, fan_out: int) -> Array:
    """A random orthogonal matrix: three cosine transforms with random signs before, between and after them.

    No QR: several factorisations in one program can deadlock XLA's thread pool on few cores, and compile slowly.
    """
    n = max(fan_in, fan_out)
    row, column = jnp.arange(n, dtype=jnp.float32)[:, None], jnp.arange(n, dtype=jnp.float32)[None]
    cosine = (2 / n) ** 0.5 * jnp.cos(jnp.pi / n * (column + 0.5) * row) * jnp.where(row == 0, 0.5**0.5, 1.0)
    before, first, second, after = jax.random.rademacher(key, (4, n), jnp.float32)
    mixed = (before[:, None] * cosine * first) @ (cosine * second) @ (cosine * after)
    return mixed[:fan_in, :fan_out]


def initial_weight(name: str, key: Array, fan_in: int, fan_out: int, gain: float) -> Array:
    """Weights by the initialiser's name: orthogonal, lecun (projections of pixels), he (SimBa) or xavier (RND)."""
    if name == "orthogonal":
        return gain * orthogonal(key, fan_in, fan_out)
    normal = {"lecun": 1.0, "he": 2.0}
    scaling = (normal[name], "fan_in", "truncated_normal") if name in normal else (gain**2, "fan_avg", "uniform")
    return jax.nn.initializers.variance_scaling(*scaling)(key, (fan_in, fan_out), jnp.float32)


class Dense(eqx.Module):
    weight: Array
    bias: Array | None

    def __init__(
        self,
        key: Array,
        fan_in: int,
        fan_out: int,
        gain: float = RELU_GAIN,
        init: str = "orthogonal",
        bias: bool = True,
    ):
        self.weight = initial_weight(init, key, fan_in, fan_out, gain)
        self.bias = jnp.zeros(fan_out, jnp.float32) if bias else None

    def __call__(self, x: Array) -> Array:
        y = x @ (turned(self.weight) if self.weight.shape[-1] < self.weight.shape[-2] else self.weight)
        return y if self.bias is None else y + self.bias


def turned(weight: Array) -> Array:
    """The same matrix, whose gradient is computed as its transpose: six times faster on a CPU where outputs are few.

    JAX asks for just that, but without the barrier XLA takes the turning back.
    """
    return jax.lax.optimization_barrier(weight.T).T


class LayerNorm(eqx.Module):
    scale: Array
    shift: Array

    def __init__(self, width: int):
        self.scale, self.shift = jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32)

    def __call__(self, x: Array) -> Array:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-6) * self.scale + self.shift


class MLP(eqx.Module):
    """Hidden layers with an activation, a linear output; optional dropout and layer norm before the activation."""

    layers: tuple[Dense, ...]
    norms: tuple[LayerNorm, ...]
    activation: str = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        sizes: tuple[int, ...],
        activation: str = "relu",
        out_gain: float = RELU_GAIN,
        init: str = "orthogonal",
        layer_norm: bool = False,
        dropout: float = 0.0,
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [RELU_GAIN] * (len(sizes) - 2) + [out_gain]
        self.layers = tuple(Dense(k, i, o, g, init) for k, i, o, g in zip(keys, sizes, sizes[1:], gains))
        self.norms = tuple(LayerNorm(width) for width in sizes[1:-1]) if layer_norm else ()
        self.activation, self.dropout = activation, dropout

    def hidden(self, x: Array, key: Array | None = None) -> list[Array]:
        """Input of every layer in turn; the last one feeds the output layer."""
        inputs = [x]
        for i, layer in enumerate(self.layers[:-1]):
            x = layer(x)
            if self.dropout and key is not None:
                keep = jax.random.bernoulli(jax.random.fold_in(key, i), 1 - self.dropout, x.shape)
                x = jnp.where(keep, x / (1 - self.dropout), 0)
            x = self.norms[i](x) if self.norms else x
            x = ACTIVATIONS[self.activation](x)
            inputs.append(x)
        return inputs

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        return self.layers[-1](self.hidden(x, key)[-1])


def stacked(make, key: Array, count: int):
    """`count` independent networks as one, with a leading axis on every leaf."""
    return jax.vmap(make)(jax.random.split(key, count))


def apply_gradients(
    optimizer: Any, grads: Any, opt: Any, params: Any, pace: Array | float | None = None
) -> tuple[Any, Any]:
    """Parameters and optimiser state after one step of an Optax optimiser, `pace` times as long where one is given."""
    change, opt = optimizer.update(grads, opt, params)
    change = change if pace is None else jax.tree.map(lambda c: pace * c, change)
    return optax.apply_updates(params, change), opt
