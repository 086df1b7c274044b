"""The networks of actors and critics: how each is made, applied, kept in bounds and exported.

A network is a frozen dataclass. Its parameters are a tree of arrays that the optimiser trains; its running statistics
are another, which passes in training mode move and the optimiser never sees. Most networks have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.networks import ACTIVATIONS, MLP, RELU_GAIN, Dense, LayerNorm
from maxinforl.errors import BadInput, unknown

MOMENTUM, EPSILON = 0.99, 1e-3  # of batch norm's running statistics, and added to variances
RHO, DELTA = 3.0, 5.0  # bounds of batch renormalisation


class Operation(NamedTuple):
    """One step of an exported network: its name (docs/deploy.md) and arrays."""

    name: str
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Network:
    """What every network has; a network of your own gives `init`, whose result is called with inputs [batch, width]."""

    random = False  # whether `apply` uses its key
    batch_norm = False  # whether its outputs in training mode depend on the whole batch

    def init(self, key: Array, inputs: int, outputs: int, out_gain: float) -> Any:
        raise NotImplementedError  # pragma: no cover

    def statistics(self, inputs: int) -> Any:
        """Running statistics before the first pass."""
        return ()

    def apply(
        self, params: Any, stats: Any, x: Array, train: bool = False, key: Array | None = None
    ) -> tuple[Array, Any]:
        """Outputs, and the running statistics after this pass."""
        return params(x), stats

    def project(self, params: Any) -> Any:
        """The parameters as they must be after every step of the optimiser."""
        return params

    def operations(self, params: Any, stats: Any) -> list[Operation]:
        """The network in evaluation mode, for bundles that act without JAX."""
        raise NotImplementedError  # pragma: no cover


def check_size(network: Any, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise BadInput(f"the {name} of a {type(network).__name__} must be at least 1, not {count}")
    if network.activation not in ACTIVATIONS:
        raise unknown("activation", network.activation, ACTIVATIONS)


def dense(layer: Dense) -> Operation:
    bias = jnp.zeros(layer.weight.shape[-1], jnp.float32) if layer.bias is None else layer.bias
    return Operation("dense", {"weight": layer.weight, "bias": bias})


def layer_norm(norm: LayerNorm) -> Operation:
    return Operation("layer_norm", {"scale": norm.scale, "shift": norm.shift})


KEEP, ADD = Operation("keep", {}), Operation("add", {})  # the start and the end of a residual connection


# ------------------------------------------------------------ dense layers, as in SAC


@dataclass(frozen=True)
class FeedForward(Network):
    """Dense layers with an activation; layer norm and dropout before it as in DroQ."""

    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    dropout: float = 0.0

    def __post_init__(self):
        check_size(self, **{f"layer {i}": width for i, width in enumerate(self.hidden)})
        if not 0 <= self.dropout < 1:
            raise BadInput(f"dropout must be at least 0 and below 1, not {self.dropout}")

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.dropout > 0

    def init(self, key: Array, inputs: int, outputs: int, out_gain: float) -> MLP:
        sizes = (inputs, *self.hidden, outputs)
        return MLP(key, sizes, self.activation, out_gain, layer_norm=self.layer_norm, dropout=self.dropout)

    def apply(
        self, params: MLP, stats: Any, x: Array, train: bool = False, key: Array | None = None
    ) -> tuple[Array, Any]:
        return params(x, key), stats

    def operations(self, params: MLP, stats: Any) -> list[Operation]:
        norms = [[layer_norm(norm)] for norm in params.norms] or [[] for _ in params.layers[:-1]]
        hidden = [[dense(d), *norm, Operation(self.activation, {})] for d, norm in zip(params.layers, norms)]
        return [*(op for layer in hidden for op in layer), dense(params.layers[-1])]


# ------------------------------------------------------------ residual blocks


class PreNormBlock(eqx.Module):
    """x + down(relu(up(norm(x))))"""

    norm: LayerNorm
    up: Dense
    down: Dense

    def __call__(self, x: Array, activation: Any) -> Array:
        return x + self.down(activation(self.up(self.norm(x))))

    def operations(self, activation: str) -> list[Operation]:
        return [KEEP, layer_norm(self.norm), dense(self.up), Operation(activation, {}), dense(self.down), ADD]


class PreNormResidual(eqx.Module):
    first: Dense
    blocks: tuple[PreNormBlock, ...]
    norm: LayerNorm
    last: Dense


@dataclass(frozen=True)
class SimbaNet(Network):
    """SimBa (Lee et al. 2024): a linear layer, blocks that add to it, a layer norm and a linear output."""

    width: int = 128
    blocks: int = 2
    expansion: int = 4  # how many times wider a block is inside
    activation: str = "relu"

    def __post_init__(self):
        check_size(self, width=self.width, expansion=self.expansion)
        if self.blocks < 0:
            raise BadInput(f"the blocks of a SimbaNet must be at least 0, not {self.blocks}")

    def init(self, key: Array, inputs: int, outputs: int, out_gain: float) -> PreNormResidual:
        """Output and first layer orthogonal with gain 1 whatever the head: their inputs are normalised."""
        k_first, k_last, *keys = jax.random.split(key, 2 + 2 * self.blocks)
        inside = self.width * self.expansion
        blocks = tuple(
            PreNormBlock(
                LayerNorm(self.width),
                Dense(k_up, self.width, inside, init="he"),
                Dense(k_down, inside, self.width, init="he"),
            )
            for k_up, k_down in zip(keys[::2], keys[1::2])
        )
        first, last = Dense(k_first, inputs, self.width, 1.0), Dense(k_last, self.width, outputs, 1.0)
        return PreNormResidual(first, blocks, LayerNorm(self.width), last)

    def apply(
        self, params: PreNormResidual, stats: Any, x: Array, train: bool = False, key: Array | None = None
    ) -> tuple[Array, Any]:
        x = params.first(x)
        for block in params.blocks:
            x = block(x, ACTIVATIONS[self.activation])
        return params.last(params.norm(x)), stats

    def operations(self, params: PreNormResidual, stats: Any) -> list[Operation]:
        blocks = [op for block in params.blocks for op in block.operations(self.activation)]
        return [dense(params.first), *blocks, layer_norm(params.norm), dense(params.last)]


class PostNormBlock(eqx.Module):
    """x + norm_2(dense_2(relu(norm_1(dense_1(x)))))"""

    layers: tuple[Dense, Dense]
    norms: tuple[LayerNorm, LayerNorm]

    def __call__(self, x: Array, activation: Any) -> Array:
        inside = activation(self.norms[0](self.layers[0](x)))
        return x + self.norms[1](self.layers[1](inside))

    def operations(self, activation: str) -> list[Operation]:
        one, two = ([dense(layer), layer_norm(norm)] for layer, norm in zip(self.layers, self.norms))
        return [KEEP, *one, Operation(activation, {}), *two, ADD]


class PostNormResidual(eqx.Module):
    first: Dense
    norm: LayerNorm
    blocks: tuple[PostNormBlock, ...]
    last: Dense


@dataclass(frozen=True)
class BroNet(Network):
    """BRO's network (Nauman et al. 2024): a dense layer with layer norm, blocks that add to it, a linear output."""

    width: int = 256
    blocks: int = 2
    activation: str = "relu"

    def __post_init__(self):
        check_size(self, width=self.width)
        if self.blocks < 0:
            raise BadInput(f"the blocks of a BroNet must be at least 0, not {self.blocks}")

    def init(self, key: Array, inputs: int, outputs: int, out_gain: float) -> PostNormResidual:
        k_first, k_last, *keys = jax.random.split(key, 2 + 2 * self.blocks)
        layer = lambda k: Dense(k, self.width, self.width)
        norms = lambda: (LayerNorm(self.width), LayerNorm(self.width))
        blocks = tuple(PostNormBlock((layer(a), layer(b)), norms()) for a, b in zip(keys[::2], keys[1::2]))
        first, last = Dense(k_first, inputs, self.width), Dense(k_last, self.width, outputs, out_gain)
        return PostNormResidual(first, LayerNorm(self.width), blocks, last)

    def apply(
        self, params: PostNormResidual, stats: Any, x: Array, train: bool = False, key: Array | None = None
    ) -> tuple[Array, Any]:
        activation = ACTIVATIONS[self.activation]
        x = activation(params.norm(params.first(x)))
        for block in params.blocks:
            x = block(x, activation)
        return params.last(x), stats

    def operations(self, params: PostNormResidual, stats: Any) -> list[Operation]:
        blocks = [op for block in params.blocks for op in block.operations(self.activation)]
        begin = [dense(params.first), layer_norm(params.norm), Operation(self.activation, {})]
        return [*begin, *blocks, dense(params.last)]


# ------------------------------------------------------------ batch norm


class Running(eqx.Module):
    """Averages of a batch norm's means and variances, and how many passes moved them."""

    mean: Array
    var: Array
    passes: Array

    def __init__(self, width: int):
        self.mean, self.var = jnp.zeros(width, jnp.float32), jnp.ones(width, jnp.float32)
        self.passes = jnp.zeros((), jnp.float32)

    def after(self, mean: Array, var: Array) -> Running:
        average = lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * stop_gradient(new)
        moved = (average(self.mean, mean), average(self.var, var), self.passes + 1)
        return eqx.tree_at(lambda r: (r.mean, r.var, r.passes), self, moved)


class BatchNorm(eqx.Module):
    scale: Array
    shift: Array

    def __init__(self, width: int):
        self.scale, self.shift = jnp.ones(width, jnp.float32), jnp.zeros(width, jnp.float32)

    def __call__(self, running: Running, x: Array, train: bool, renorm: int | None) -> tuple[Array, Running]:
        """(x - mean) / std * scale + shift, with the batch's own moments in training, else the running ones."""
        if not train:
            return self.at(x, running.mean, running.var), running
        mean, var = x.mean(0), x.var(0)
        used = (mean, var) if renorm is None else renormed(running, mean, var, renorm)
        return self.at(x, *used), running.after(mean, var)

    def at(self, x: Array, mean: Array, var: Array) -> Array:
        return (x - mean) * jax.lax.rsqrt(var + EPSILON) * self.scale + self.shift

    def operation(self, running: Running) -> Operation:
        scale = self.scale * jax.lax.rsqrt(running.var + EPSILON)
        return Operation("standardize", {"mean": running.mean, "scale": scale, "shift": self.shift})


def renormed(running: Running, mean: Array, var: Array, begins: int) -> tuple[Array, Array]:
    """Batch renormalisation (Ioffe 2017), once `begins` passes were made: outputs as with the running statistics,
    within bounds, and gradients as with the batch's."""
    std, running_std = jnp.sqrt(var + EPSILON), jnp.sqrt(running.var + EPSILON)
    rho = stop_gradient(jnp.clip(std / running_std, 1 / RHO, RHO))
    delta = stop_gradient(jnp.clip((mean - running.mean) / running_std, -DELTA, DELTA))
    due = running.passes >= begins
    return jnp.where(due, mean - delta * jnp.sqrt(var) / rho, mean), jnp.where(due, var / rho**2, var)


class BatchNormLayers(eqx.Module):
    layers: tuple[Dense, ...]
    norms: tuple[BatchNorm, ...]  # of the input and of every hidden layer


@dataclass(frozen=True)
class BatchNormNet(Network):
    """Dense layers with batch norm, of the inputs too.

    Before the activation, with columns of norm 1 and no biases, it is XQC's (Palenicek et al. 2025); after it, with
    batch renormalisation, CrossQ's (Bhatt et al. 2024).
    """

    width: int = 256
    layers: int = 2
    after: bool = False  # the activation
    renorm: int | None = None  # passes after which batch renormalisation begins; None: plain batch norm
    unit: bool = False  # whether the weights of every output are held at norm 1
    activation: str = "relu"

    batch_norm = True

    def __post_init__(self):
        check_size(self, width=self.width, layers=self.layers)
        if self.renorm is not None and self.renorm < 0:
            raise BadInput(f"batch renormalisation cannot begin after {self.renorm} passes: give 0 or more")

    def init(self, key: Array, inputs: int, outputs: int, out_gain: float) -> BatchNormLayers:
        sizes = (inputs, *(self.width for _ in range(self.layers)), outputs)
        keys, init = jax.random.split(key, len(sizes) - 1), "lecun" if self.after else "orthogonal"
        hidden = [Dense(k, i, o, RELU_GAIN, init, bias=self.after) for k, i, o in zip(keys[:-1], sizes, sizes[1:])]
        last = Dense(keys[-1], self.width, outputs, out_gain, init)
        return self.project(BatchNormLayers((*hidden, last), tuple(BatchNorm(width) for width in sizes[:-1])))

    def statistics(self, inputs: int) -> tuple[Running, ...]:
        return tuple(Running(width) for width in (inputs, *(self.width for _ in range(self.layers))))

    def apply(
        self,
        params: BatchNormLayers,
        stats: tuple[Running, ...],
        x: Array,
        train: bool = False,
        key: Array | None = None,
    ) -> tuple[Array, tuple[Running, ...]]:
        activation, norm = ACTIVATIONS[self.activation], params.norms[0]
        x, running = norm(stats[0], x, train, self.renorm)
        moved = [running]
        for layer, norm, running in zip(params.layers, params.norms[1:], stats[1:]):
            x = activation(layer(x)) if self.after else layer(x)
            x, running = norm(running, x, train, self.renorm)
            x = x if self.after else activation(x)
            moved.append(running)
        return params.layers[-1](x), tuple(moved)

    def project(self, params: BatchNormLayers) -> BatchNormLayers:
        if not self.unit:
            return params
        unit = lambda layer: eqx.tree_at(lambda d: d.weight, layer, unit_columns(layer.weight))
        return eqx.tree_at(lambda p: p.layers, params, tuple(unit(layer) for layer in params.layers))

    def operations(self, params: BatchNormLayers, stats: tuple[Running, ...]) -> list[Operation]:
        found = [params.norms[0].operation(stats[0])]
        for layer, norm, running in zip(params.layers, params.norms[1:], stats[1:]):
            normed, active = norm.operation(running), Operation(self.activation, {})
            found += [dense(layer), active, normed] if self.after else [dense(layer), normed, active]
        return [*found, dense(params.layers[-1])]


def unit_columns(weight: Array) -> Array:
    """The weights of every output at norm 1."""
    return weight / jnp.maximum(jnp.linalg.norm(weight, axis=-2, keepdims=True), 1e-8)
