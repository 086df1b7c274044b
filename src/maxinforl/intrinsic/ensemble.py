"""An ensemble of models of the dynamics and reward; how they disagree is what the agent does not know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from maxinforl.core.networks import ACTIVATIONS, INITIALISERS, MLP, apply_gradients, stacked
from maxinforl.core.normalizer import Normalizer, Standardize
from maxinforl.core.types import Clock, Imagination, Imagined, Latents, LatentSpec, Metrics
from maxinforl.errors import BadInput, unknown
from maxinforl.fields import later
from maxinforl.intrinsic.model_rows import ModelRows, TrackRecord
from maxinforl.intrinsic.protocol import ScoresActions

LEAST_STD, MOST_STD = 1e-3, 1e2
LEAST_ERROR = 1e-6  # added to a squared error or variance inside a logarithm
AGGREGATES = ("mean", "sum", "blocks")


class Model(eqx.Module):
    members: MLP  # leaves lead with [members]
    opt: Any
    inputs: Normalizer
    outputs: Normalizer
    frozen: Any  # parameters that are never trained
    blocks: tuple[int, ...] = eqx.field(static=True)  # widths of the parts of the target
    delta: bool = eqx.field(static=True)
    vector: int = eqx.field(static=True)
    record: Any = ()  # TrackRecord, where it imagines rows for the critics


@dataclass(frozen=True)
class Ensemble:
    """What every intrinsic reward here shares: members trained on one batch, apart only by initialisation."""

    members: int = 5
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "silu"
    init_name: str = "orthogonal"
    lr: float = 3e-4
    aggregate: str = "mean"  # of the loss over outputs; blocks: the reward weighs as much as the whole state
    clip: float | None = None  # bound on normalised targets
    normalize: Standardize = later(Standardize(memory=5e4, floor=1e-6), before=Standardize())  # the intrinsic reward
    model_rows: ModelRows = ModelRows()  # of the critics' batches, which the members imagine

    aleatoric = False
    least = 2  # members: one alone cannot disagree

    def __post_init__(self):
        check_ensemble(self)

    @property
    def optimizer(self):
        return optax.adam(self.lr)

    def blocks(self, spec: LatentSpec) -> tuple[int, ...]:
        """Widths of what is predicted: the state's change (or latent), the embedding, the reward."""
        return tuple(width for width in (spec.z, spec.extra, 1) if width)

    def frozen(self, key: Array, spec: LatentSpec):
        return ()

    def init(self, key: Array, spec: LatentSpec) -> Model:
        k_members, k_frozen = jax.random.split(key)
        blocks, inputs = self.blocks(spec), spec.z + spec.action
        sizes = (inputs, *self.hidden, sum(blocks) * (2 if self.aleatoric else 1))
        members = stacked(
            lambda k: MLP(k, sizes, activation=self.activation, init=self.init_name), k_members, self.members
        )
        return Model(
            members,
            self.optimizer.init(members),  # type: ignore[arg-type]
            Normalizer((inputs,)),
            Normalizer((sum(blocks),)),
            self.frozen(k_frozen, spec),
            blocks,
            spec.delta,
            spec.vector,
            TrackRecord() if self.model_rows.share else (),
        )

    def target(self, model: Model, inputs: Normalizer, e: Latents) -> Array:
        """What the members predict, not yet normalised."""
        return jnp.concatenate([*successor(model, e), e.extra, e.reward[..., None]], -1)

    def predict(self, members: MLP, x: Array) -> tuple[Array, Array | None]:
        """Mean and, where it is learned, standard deviation in normalised units: [members, batch, outputs]."""
        out = jax.vmap(lambda net: net(x))(members)
        if not self.aleatoric:
            return out, None
        mean, raw = jnp.split(out, 2, -1)
        return mean, jnp.clip(jax.nn.softplus(raw), LEAST_STD, MOST_STD)

    def loss(self, members: MLP, x: Array, y: Array, blocks: tuple[int, ...] = ()) -> tuple[Array, Array]:
        """Squared error or, where the noise is learned, negative log-likelihood; and the squared errors."""
        mean, std = self.predict(members, x)
        error = jnp.square(mean - y)
        each = error if std is None else 0.5 * error / std**2 + jnp.log(std)
        return (block_means(blocks, each) if self.aggregate == "blocks" else each).mean(), error

    def update(self, model: Model, e: Latents) -> tuple[Model, Metrics]:
        """One step on the members, with statistics that already contain the batch."""
        x = jnp.concatenate([e.z, e.action], -1)
        inputs = model.inputs.update(x)
        y = self.target(model, inputs, e)
        outputs = model.outputs.update(y)
        normal = outputs(y) if self.clip is None else jnp.clip(outputs(y), -self.clip, self.clip)
        grads, error = jax.grad(self.loss, has_aux=True)(model.members, inputs(x), normal, model.blocks)
        seen = error if self.clip is None else jnp.square(self.predict(model.members, inputs(x))[0] - outputs(y))
        members, opt = apply_gradients(self.optimizer, grads, model.opt, model.members)
        model, metrics = replace(model, members=members, opt=opt, inputs=inputs, outputs=outputs), {}
        if self.model_rows.share:
            model = replace(model, record=model.record.after(block_means(model.blocks, seen.mean((0, 1))), e))
            metrics = model.record.metrics
        return model, {"explore/model_error": error.mean()} | metrics

    def error(self, model: Model, e: Latents) -> Array:
        """Mean squared error of the members on transitions, in normalised units."""
        target = self.target(model, model.inputs, e)
        return jnp.square(self.outcome(model, e.z, e.action)[0] - model.outputs(target)).mean()

    def error_of_mean(self, model: Model, e: Latents) -> Array:
        """The same of what knows nothing but the mean of the targets."""
        return jnp.square(model.outputs(self.target(model, model.inputs, e))).mean()

    def imagination(self, model: Model, e: Latents, clock: Clock) -> Imagination | None:
        """The rows of the critics' batch that the members imagine; `e` is the batch. None where there are none."""
        rows = self.model_rows.rows(e.reward.shape[0])
        if not rows:
            return None

        def outcome(z: Array, action: Array) -> Imagined:
            """s' = s + the members' mean change, their mean reward within the range of real ones."""
            members = self.outcome(model, z, action)[0]
            change, reward = jnp.split(model.outputs.inverse(members.mean(0)), [z.shape[-1]], -1)
            u = member_std(members).mean(-1)
            reward = jnp.clip(reward[..., 0], *model.record.reward_range(e.reward))
            return Imagined(reward, z + change, self.model_rows.weight(model.record, u, clock.update), u)

        return Imagination(rows, outcome)

    def outcome(self, model: Model, z: Array, action: Array) -> tuple[Array, Array | None]:
        """The members' predictions at (z, a); differentiable in both, constant in the model."""
        return self.predict(stop_gradient(model.members), model.inputs(jnp.concatenate([z, action], -1)))

    def reward(self, model: Model, e: Latents) -> Array:
        """The intrinsic reward of an observed transition: its score, where a subclass has one."""
        if not isinstance(self, ScoresActions):
            raise NotImplementedError("it implements neither score() nor reward()")
        return self.score(model, e.z, e.action)

    def per_block(self, model: Model, values: Array) -> Array:
        """Mean within each block of the outputs, summed over blocks: the reward weighs as much as the whole state."""
        return sum(jnp.moveaxis(block_means(model.blocks, values), -1, 0), jnp.zeros(()))


def check_ensemble(ensemble: Ensemble) -> None:
    """Raises `BadInput` with what to change."""
    if ensemble.members < ensemble.least:
        raise BadInput(f"{type(ensemble).__name__} needs at least {ensemble.least} members, not {ensemble.members}")
    if min(ensemble.hidden, default=1) < 1 or not ensemble.lr > 0:
        raise BadInput(f"{type(ensemble).__name__} needs hidden layers of at least 1 and a learning rate above 0")
    if ensemble.activation not in ACTIVATIONS:
        raise unknown("activation", ensemble.activation, ACTIVATIONS)
    if ensemble.aggregate not in AGGREGATES:
        raise unknown("aggregate", ensemble.aggregate, AGGREGATES)
    if ensemble.clip is not None and not ensemble.clip > 0:
        raise BadInput(f"the bound on normalised targets must be above 0, not {ensemble.clip}")
    if ensemble.init_name not in INITIALISERS:
        raise unknown("initialiser", ensemble.init_name, INITIALISERS)
    if getattr(ensemble, "log", False) and not ensemble.normalize.centre:
        raise BadInput(
            "a logarithm without its centre is negative everywhere: leave intrinsic.normalize.centre, or log"
        )
    if ensemble.model_rows.share and ensemble.members < 2:
        raise BadInput("one member alone cannot disagree about the rows of --model-share: raise intrinsic.members")
    if ensemble.model_rows.share and type(ensemble).target is not Ensemble.target:
        raise BadInput(
            f"{type(ensemble).__name__} does not predict the next state, so it can imagine no rows: leave out "
            "--model-share, or choose info-gain, disagreement or curiosity"
        )


def successor(model: Model, e: Latents) -> list[Array]:
    """The next latents as they are, and how a state or a vector beside latents changes."""
    if model.delta:
        return [e.next_z - e.z]
    latents = e.next_z.shape[-1] - model.vector
    change = e.next_z[..., latents:] - e.z[..., latents:]
    return [e.next_z[..., :latents], change] if model.vector else [e.next_z]


def block_means(blocks: tuple[int, ...], values: Array) -> Array:
    """The mean within each block of the outputs, which lie on the last axis."""
    ends = [sum(blocks[: i + 1]) for i in range(len(blocks) - 1)]
    return jnp.stack([part.mean(-1) for part in jnp.split(values, ends, -1)], -1)


def variance(x: Array, ddof: int = 0) -> Array:
    """Over members; measured from the first one, so that it is exactly 0 where they all agree."""
    return (x - stop_gradient(x[:1])).var(0, ddof=ddof)


def member_std(x: Array) -> Array:
    """Sample standard deviation over members, with value 0 and gradient 0 where they all agree."""
    square = variance(x, ddof=1)
    apart = square > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)
