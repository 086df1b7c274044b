"""The encoder of images: convolutions, projection, embedding, random shifts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from core_helpers import quick
from maxinforl.core import encoders
from maxinforl.core.encoders import KERNEL, SHIFT, STRIDES, Pixels, Projection, States, convolve, shifted
from maxinforl.core.types import Spec
from maxinforl.errors import BadInput
from maxinforl.intrinsic import InfoGain
from pixel_helpers import batches, images

KEY = jax.random.key(0)
RNG = np.random.default_rng


def by_hand(params, image: np.ndarray) -> np.ndarray:
    """Four convolutions without padding, written as loops."""
    x = image / 255.0
    for layer, stride in zip(params, STRIDES):
        w, b = np.asarray(layer.weight, np.float64), np.asarray(layer.bias)
        rows, columns = ((size - KERNEL) // stride + 1 for size in x.shape[:2])
        y = np.zeros((rows, columns, w.shape[-1]))
        for i in range(rows):
            for j in range(columns):
                window = x[i * stride : i * stride + KERNEL, j * stride : j * stride + KERNEL]
                y[i, j] = np.tensordot(window, w, 3) + b
        x = np.maximum(y, 0)
    return x.reshape(-1)


def cheap_init(shape: tuple[int, ...]):
    """Random convolutions, biases included, so that forgetting them shows."""
    rng = RNG(5)
    like = jax.eval_shape(lambda: Pixels().init(KEY, Spec(shape, 1)))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32) / 9, like)


# ------------------------------------------------------------ invariant 20: convolutions, crops, who trains them


@pytest.mark.parametrize(("side", "width"), [(84, 39_200), (48, 9_248), (32, 2_592), (15, 32)])
def test_width_of_the_features(side, width):
    spec = Spec((side, side, 9), 1)
    init = lambda: (Pixels().init(KEY, spec), Pixels().trunk_init(KEY, spec))
    params, trunk = jax.eval_shape(init)
    features = jax.eval_shape(Pixels().features, params, jax.ShapeDtypeStruct((2, side, side, 9), jnp.uint8))
    assert features.shape == (2, width) and features.dtype == jnp.float32
    assert trunk.dense.weight.shape == (width, 50) and Pixels(latent=100).latents(spec).z == 100


@pytest.mark.parametrize(("shape", "in_cache"), [((16, 16, 3), 999), ((17, 20, 1), 999), ((24, 15, 9), 400)])
def test_features_are_four_convolutions_in_nhwc_order(shape, in_cache, monkeypatch):
    monkeypatch.setattr(encoders, "IN_CACHE", in_cache)  # two images at a time; the last one by one
    params, picture = cheap_init(shape), images(RNG(0), 2, *shape)
    wanted = np.stack([by_hand(params, np.asarray(p)) for p in picture])
    assert wanted.any()
    np.testing.assert_allclose(Pixels().features(params, picture), wanted, atol=1e-5)


def test_initial_convolutions_are_orthogonal_with_gain_root_two():
    for layer in quick(lambda k: Pixels().init(k, Spec((84, 84, 9), 1)))(KEY):
        w = layer.weight.reshape(-1, 32)
        np.testing.assert_allclose(w.T @ w, 2 * np.eye(32), atol=2e-3)
        assert not layer.bias.any()


def test_projection_is_dense_layer_norm_tanh_with_lecun_weights():
    projection = Projection(KEY, 4000, 50)
    np.testing.assert_allclose(projection.dense.weight.std(), 4000**-0.5, rtol=0.02)
    assert not projection.dense.bias.any()
    x = jnp.asarray(RNG(0).normal(size=(3, 4000)), jnp.float32)
    h = np.asarray(x @ projection.dense.weight + projection.dense.bias)
    normed = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(projection(x), np.tanh(normed), atol=1e-5)
    np.testing.assert_allclose(Pixels().linear(projection, x)[0], h, atol=1e-5)


@pytest.mark.parametrize(("shape", "stride"), [((9, 9), 1), ((9, 8), 2), ((8, 11), 2), ((7, 12), 1)])
def test_gradients_of_the_convolution_are_those_of_jax(shape, stride):
    rng = RNG(0)
    x = jnp.asarray(rng.normal(size=(2, *shape, 3)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(3, 3, 3, 4)), jnp.float32)
    plain = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    loss = lambda f: lambda x, w: jnp.sin(f(x, w)).sum()
    ours = jax.grad(loss(lambda x, w: convolve(x, w, stride)), (0, 1))(x, w)
    for got, wanted in zip(ours, jax.grad(loss(plain), (0, 1))(x, w)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_convolutions_keep_the_layout_that_is_quick_in_a_loop():
    """In any other layout XLA's CPU convolutions in a loop are 20 times slower."""
    picture = images(RNG(0), 2, 2, 16, 16, 3)
    slope = jax.grad(lambda params, x: jnp.sin(Pixels().features(params, x)).sum())
    loop = lambda params, x: jax.lax.scan(lambda p, x: (slope(p, x), None), params, x)
    text = quick(loop).lower(cheap_init((16, 16, 3)), picture).compile().as_text()
    lines = [line for line in text.splitlines() if " convolution(" in line]
    found = [line.split("dim_labels=")[1].split(",")[0] for line in lines]
    assert len(found) == 11 and set(found) == {"b01f_01io->b01f"}
    assert all("pad=" in line for line in lines)  # without any, XLA's take twice as long


def test_a_shifted_constant_image_is_the_same_constant():
    picture = jnp.full((4, 20, 18, 3), 77, jnp.uint8)
    assert (shifted(picture, KEY) == 77).all()


def test_a_shift_is_a_crop_of_the_image_padded_with_its_border():
    picture = np.asarray(images(RNG(0), 400, 12, 10, 2))
    moved = np.asarray(jax.jit(shifted)(picture, KEY))
    padded = np.pad(picture, [(0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)], "edge")
    places = [
        [(i, j) for i in range(9) for j in range(9) if np.array_equal(padded[n, i : i + 12, j : j + 10], moved[n])]
        for n in range(400)
    ]
    assert all(len(p) == 1 for p in places)
    found = np.array([p[0] for p in places])
    counts = np.stack([np.bincount(found[:, axis], minlength=9) for axis in (0, 1)])
    assert counts.min() > 20 and counts.max() < 80  # uniform: 44 each
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.2


def test_every_image_of_a_batch_is_shifted_on_its_own():
    same = images(RNG(0), 1, 16, 16, 3)
    data = batches(3, None, size=32)
    alike = jnp.broadcast_to(same, (32, 16, 16, 3))
    data = data._replace(
        obs=alike,
        one=data.one._replace(next_obs=alike),
        nstep=data.nstep._replace(next_obs=alike),  # type: ignore[union-attr]
    )
    view = Pixels().augment(data, KEY)
    views = [view.obs, view.one.next_obs, view.nstep.next_obs]  # type: ignore[union-attr]
    for i, a in enumerate(views):
        assert a.dtype == jnp.uint8 and len(np.unique(np.asarray(a).reshape(32, -1), axis=0)) > 16
        assert not any(np.array_equal(a, b) for b in views[:i])
    rest = lambda b: (b.action, b.one.reward, b.one.discount, b.nstep.reward, b.nstep.discount, b.gamma)
    assert all(a is b for a, b in zip(rest(view), rest(data)))
    assert Pixels().augment(batches(1, None), KEY).nstep is None


# ------------------------------------------------------------ invariant 21: the embedding


def test_the_embedding_is_a_maximum_over_windows():
    features = jnp.asarray(RNG(0).normal(size=(3, 39_200)), jnp.float32)
    e = Pixels().extra(features)
    assert e.shape == (3, 32)
    for i in range(32):
        np.testing.assert_array_equal(e[:, i], features[:, i * 1225 : (i + 1) * 1225].max(1))


def test_pooled_per_channel_it_is_a_maximum_over_the_image():
    maps = jnp.asarray(RNG(0).normal(size=(3, 9, 9, 32)), jnp.float32)
    np.testing.assert_array_equal(Pixels(per_channel=True).extra(maps.reshape(3, -1)), maps.max((1, 2)))


def test_latents_are_absolute_and_83_wide_with_embedding_and_reward():
    """Invariant 6 for pixels."""
    spec = Pixels().latents(Spec((84, 84, 9), 6))
    assert spec == (50, 6, 32, False, 0)
    assert sum(InfoGain().blocks(spec)) == 83


# ------------------------------------------------------------ what the encoder refuses


def test_what_cannot_be_encoded_is_refused_with_a_sentence():
    with pytest.raises(BadInput, match="14x40 are too small for the encoder: 15x15"):
        Pixels().latents(Spec((14, 40, 3), 1))
    with pytest.raises(BadInput, match="reads images, and the observation has the shape"):
        Pixels().latents(Spec((3,), 1))
    with pytest.raises(BadInput, match="reads vectors, and the observations are images of 84x84"):
        States().latents(Spec((84, 84, 3), 1))
    with pytest.raises(BadInput, match="must be uint8 from 0 to 255, and these are float32"):
        Pixels().features((), jnp.zeros((1, 16, 16, 3)))
