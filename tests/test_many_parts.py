"""Images and vectors in one observation: what the replay keeps, what networks read, what an agent refuses."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import maxinforl
from core_helpers import quick
from deploy_helpers import scrambled
from maxinforl import cli, deploy, envs, files, runner
from maxinforl.core.encoders import EMBEDDING, Pixels
from maxinforl.core.layout import Layout, Parts
from maxinforl.core.types import Backup, Batch, Latents, Spec
from maxinforl.deploy import bundle
from maxinforl.errors import BadInput, RunFailed
from maxinforl.intrinsic import InfoGain
from maxinforl.replay import row_bytes
from maxinforl.training.arrays import agent_arrays
from maxinforl.training.nonfinite import load_bad_batch
from maxinforl.training.trainer import replay_bytes

SIZE = (15, 16)
SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (*SIZE, 3), np.uint8),
        "inner": spaces.Dict({"grip": spaces.Discrete(3, start=-1), "wrist": spaces.Box(0, 255, SIZE, np.uint8)}),
        "joints": spaces.Box(-3, 3, (2, 2), np.float64),
        "velocity": spaces.Box(-3, 3, (2,), np.float32),
    }
)
PARTS = ("camera", "inner.grip", "inner.wrist", "joints", "velocity")
TINY = {"base.hidden": (8, 8), "base.encoder.latent": 4}
QUICK = {"set": TINY, "batch_size": 4, "learning_starts": 6, "eval_episodes": 0, "frame_stack": 2}


class Cell(gym.Env):
    """Observes what its space samples, for five steps."""

    observation_space = SPACE
    action_space = spaces.Box(np.array([-0.3, 2.0], np.float32), np.array([0.1, 7.0], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        self.space = spaces.Dict(SPACE.spaces)
        self.space.seed(int(self.np_random.integers(1 << 30)))
        return self.space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        return self.space.sample(), float(action[0]), False, self.left == 0, {}


def stacked(*frames: dict) -> dict:
    """Observations one after the other as a stack of their images beside the vectors of the newest."""
    camera = np.concatenate([row["camera"] for row in frames], -1)
    wrist = np.stack([row["inner"]["wrist"] for row in frames], -1)
    return {**frames[-1], "camera": camera, "inner": {"grip": frames[-1]["inner"]["grip"], "wrist": wrist}}


def samples(count: int) -> list[dict]:
    SPACE.seed(3)
    return [SPACE.sample() for _ in range(count)]


# ------------------------------------------------------------ in the replay


@pytest.mark.parametrize("critic_only", [None, "inner.wrist,joints"])
def test_a_row_of_bytes_holds_every_part_and_is_read_back(critic_only):
    env, (old, new) = envs.make(Cell, critic_only=critic_only), samples(2)
    agent = maxinforl.make("drq", Cell, critic_only=critic_only, **QUICK)
    rows = np.concatenate([env._observe(old), env._observe(new)])
    images, vector = agent.spec.read(jnp.asarray(rows)[None])
    together = stacked(old, new)
    np.testing.assert_array_equal(images[0][0], together["camera"])
    np.testing.assert_array_equal(images[1][0], together["inner"]["wrist"])
    grip = np.eye(3)[new["inner"]["grip"] + 1]
    parts = [grip, new["joints"].ravel(), new["velocity"]]
    order = [0, 2, 1] if critic_only else [0, 1, 2]
    np.testing.assert_array_equal(vector[0], np.concatenate([parts[i] for i in order]).astype(np.float32))
    batch, single = agent.spaces.batch(together, agent.settings, whole=True)
    assert single
    again = agent.spec.read(jnp.asarray(batch))
    jax.tree.map(np.testing.assert_array_equal, again, Parts(images, vector))


def test_a_row_takes_a_byte_a_pixel_and_four_a_number_and_the_memory_is_told_before():
    agent = maxinforl.make("drq", Cell, **QUICK)
    assert agent.observation_space.shape == (15 * 16 * 4 + 4 * (3 + 4 + 2),)
    assert row_bytes(agent.observation_space.shape, 1, 2) == 15 * 16 * 4 + 36 + 8 + 4 + 1 + 4 + 4
    assert replay_bytes(agent.settings, 10_000, agent.spaces) > 10_000 * 996
    with pytest.raises(BadInput, match=r"the replay needs .* GB"):
        maxinforl.make("drq", Cell, **QUICK | {"capacity": 10**9}).learn(10**9)


def test_what_is_kept_of_one_part_is_as_it_was():
    vector, image = envs.make("Pendulum-v1"), envs.make("pixels/pendulum-hanging", image_size=16)
    assert (vector.observation_space.shape, vector.observation_space.dtype) == ((3,), np.float32)
    assert (image.observation_space.shape, image.observation_space.dtype) == ((16, 16, 3), np.uint8)
    for name, algo in (("Pendulum-v1", "sac"), ("pixels/pendulum-hanging", "drq")):
        assert maxinforl.make(algo, name, image_size=16).spec.layout is None


def test_the_first_frame_of_an_episode_is_repeated_and_vectors_are_of_the_newest():
    agent = maxinforl.make("drq", Cell, **QUICK)
    agent.learn(4)
    assert agent.trainer is not None
    replay, env = agent.trainer.state.replay, envs.make(Cell)
    first = agent.spec.read(jnp.concatenate([replay.obs[0, 0]] * 2)[None])
    jax.tree.map(np.testing.assert_array_equal, replay.frames(jnp.array([0]), jnp.array([0])), first)
    images, vector = replay.frames(jnp.array([0]), jnp.array([2]))
    np.testing.assert_array_equal(
        images[0][0, ..., :3], replay.frames(jnp.array([0]), jnp.array([1]))[0][0][0, ..., 3:]
    )
    np.testing.assert_array_equal(vector[0], replay.obs[0, 2].view(jnp.uint8)[vector_bytes(env)].view(jnp.float32))


def vector_bytes(env: Any) -> np.ndarray:
    """Places of the numbers in a row of bytes."""
    begin, places = 0, []
    for part in env.observation_space.parts:
        size = part.size * (1 if part.image else 4)
        places += [] if part.image else [*range(begin, begin + size)]
        begin += size
    return np.array(places)


# ------------------------------------------------------------ what networks and models see

LAYOUT = Layout(((15, 16, 3), (2,), (20, 15, 1), (3,)), stack=2)
SPEC = Spec((2 * LAYOUT.frame,), 2, layout=LAYOUT)


def noise(count: int = 4, seed: int = 0) -> Parts:
    rng = np.random.default_rng(seed)
    images = tuple(jnp.asarray(rng.integers(0, 256, (count, *shape)), jnp.uint8) for shape in SPEC.images)
    return Parts(images, jnp.asarray(rng.normal(size=(count, 5)), jnp.float32))


def test_every_image_has_convolutions_of_its_own_and_the_vector_lies_beside_the_latents():
    encoder, obs = Pixels(latent=4), noise()
    params, trunk = quick(lambda k: (encoder.init(k, SPEC), encoder.trunk_init(k, SPEC)))(jax.random.key(0))
    assert [layers[0].weight.shape[2] for layers in params] == [6, 2]
    features = encoder.features(params, obs)
    z = encoder.trunk(trunk, features)
    assert z.shape == (4, encoder.latents(SPEC).z) == (4, 4 + 4 + 5)
    np.testing.assert_array_equal(z[:, 8:], obs.vector)
    assert encoder.extra(features).shape == (4, 2 * EMBEDDING) == (4, encoder.latents(SPEC).extra)
    for i in range(2):
        images = list(obs.images)
        images[i] = images[i] ^ 255
        other = encoder.trunk(trunk, encoder.features(params, obs._replace(images=tuple(images))))
        changed = np.abs(np.array(other - z)).max(0) > 0
        assert changed[4 * i : 4 * i + 4].all() and not np.delete(changed, range(4 * i, 4 * i + 4)).any()


def test_models_predict_latents_and_the_change_of_the_vector():
    spec = Pixels(latent=4).latents(SPEC)
    assert (spec.delta, spec.vector) == (False, 5)
    draw = lambda *shape: jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.float32)
    intrinsic = InfoGain(members=2, hidden=(4,))
    model = intrinsic.init(jax.random.key(0), spec)
    e = Latents(draw(3, 13), draw(3, 2), draw(3), 2 * draw(3, 13) + 1, draw(3, 2 * EMBEDDING))
    target = intrinsic.target(model, model.inputs, e)
    np.testing.assert_array_equal(target[:, :8], e.next_z[:, :8])
    np.testing.assert_array_equal(target[:, 8:13], (e.next_z - e.z)[:, 8:])
    assert target.shape[-1] == 13 + 2 * EMBEDDING + 1


def test_images_are_shifted_each_by_its_own_draw_and_vectors_are_not():
    obs = noise(16)
    same = Parts((obs.images[0], obs.images[0]), obs.vector)
    backup = Backup(jnp.zeros(16), jnp.zeros(16), same)
    batch = Pixels().augment(Batch(same, jnp.zeros((16, 2)), backup, None, jnp.zeros(16)), jax.random.key(0))
    for view in (batch.obs, batch.one.next_obs):
        np.testing.assert_array_equal(view.vector, obs.vector)
        assert not np.array_equal(view.images[0], obs.images[0])
        assert not np.array_equal(view.images[0], view.images[1])
    assert not np.array_equal(batch.obs.images[0], batch.one.next_obs.images[0])


def test_a_batch_that_a_run_stopped_at_is_read_back_with_its_parts(tmp_path):
    obs, zeros = noise(2), jnp.zeros(2)
    batch = Batch(obs, jnp.zeros((2, 2)), Backup(zeros, zeros, noise(2, seed=1)), None, zeros)
    arrays = {f"batch/{name}": array for name, array in agent_arrays(batch).items()} | {"key": np.zeros(2, np.uint32)}
    files.save_arrays(tmp_path / "bad", arrays, {})
    jax.tree.map(np.testing.assert_array_equal, load_bad_batch(tmp_path / "bad")[0], batch)


HIDDEN = {"a vector": "velocity", "an image and a choice": "inner", "most": "inner,joints,velocity"}


@pytest.mark.parametrize("keys", HIDDEN.values(), ids=HIDDEN)
def test_a_part_for_critics_alone_cannot_change_an_action(keys, tmp_path):
    agent = scrambled(maxinforl.make("drq", Cell, critic_only=keys, **QUICK))
    first, other, *_ = (stacked(a, b) for a, b in zip(samples(6)[::2], samples(6)[1::2]))
    hidden = keys.split(",")
    mixed = {key: other[key] if key in hidden else first[key] for key in first}
    seen = {key: value for key, value in first.items() if key not in hidden}
    expected, _ = agent.predict(first, deterministic=True)
    for obs in (mixed, seen):
        np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], expected)
    assert (agent.predict(other, deterministic=True)[0] != expected).all()
    if keys == HIDDEN["an image and a choice"]:
        for to in ("numpy", "onnx"):
            deploy.export(agent, to, tmp_path / to)
            np.testing.assert_allclose(bundle.opened(tmp_path / to, to)(seen), expected, atol=1e-5)
        contract = runner.read_contract(tmp_path / "numpy" / "contract.json")["observation"]
        assert [part["name"] for part in contract["order"]] == ["camera", "joints", "velocity"]


REFUSED = {
    "a state-based agent": ("sac", {}, "gives images: use drq"),
    "no image for the actor": ("drq", {"critic_only": "camera,inner.wrist"}, "hides every image"),
    "prior data": ("drq", {"prior_data": "a.npz"}, "prior data are vectors"),
}


@pytest.mark.parametrize(("algo", "options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_with_images_is_refused(algo, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zeros = np.zeros((2, 9), np.float32)
    maxinforl.Prior(zeros, zeros[:, :2], zeros[:, 0], zeros, zeros[:, 0]).save("a.npz")
    with pytest.raises(BadInput, match=sentence):
        maxinforl.make(algo, Cell, **options)


def test_a_number_that_is_not_finite_is_a_fault_although_bytes_hide_it():
    env = envs.make(Cell)
    with pytest.raises(RunFailed, match="holds nan, which is not a finite number"):
        env._observe({**samples(1)[0], "velocity": np.array([0, np.nan], np.float32)})
    agent = maxinforl.make("drq", Cell, **QUICK)
    with pytest.raises(BadInput, match="not finite"):
        agent.predict({**stacked(*samples(2)), "velocity": np.array([0, np.nan], np.float32)})


WRONG = {
    "a single frame": (lambda row: samples(1)[0], "camera has shape .*the last 2 frames"),
    "another type": (lambda row: row | {"camera": row["camera"].astype(np.float32)}, "images are uint8"),
    "a missing part": (lambda row: {k: row[k] for k in ("camera", "inner")}, "lacks its part joints"),
    "unequal batches": (lambda row: row | {"camera": row["camera"][None]}, "unequal"),
    "a flat array": (lambda row: np.zeros(9, np.float32), "has the parts camera, inner.grip"),
}


@pytest.mark.parametrize(("wrong", "sentence"), WRONG.values(), ids=WRONG)
def test_an_observation_that_is_not_the_environments_is_refused(wrong, sentence):
    with pytest.raises(BadInput, match=sentence):
        maxinforl.make("drq", Cell, **QUICK).predict(wrong(stacked(*samples(2))))


# ------------------------------------------------------------ single frames, as evaluate_policy passes them on


def test_predict_keeps_the_frames_that_evaluate_policy_passes_on():
    agent = scrambled(maxinforl.make("drq", Cell, **QUICK))
    a, b, c = samples(3)
    batch = lambda *rows: (
        {"camera": np.stack([r["camera"] for r in rows])}
        | {
            "inner": {key: np.stack([r["inner"][key] for r in rows]) for key in ("grip", "wrist")},
            **{key: np.stack([r[key] for r in rows]) for key in ("joints", "velocity")},
        }
    )
    expected = [agent.predict(stacked(*pair), deterministic=True)[0] for pair in ((a, a), (b, b), (a, b), (c, c))]
    first, state = agent.predict(batch(a, b), None, np.ones(2, bool), True)
    np.testing.assert_allclose(first, expected[:2], rtol=1e-5)
    second, _ = agent.predict(batch(b, c), state, np.array([False, True]), True)
    np.testing.assert_allclose(second, expected[2:], rtol=1e-5)
    with pytest.raises(BadInput, match="not what predict returned"):
        agent.predict(batch(b, c), np.zeros(3), np.zeros(2, bool), True)


# ------------------------------------------------------------ from training to a robot


def train(out: Path, callback: Any = None) -> maxinforl.Agent:
    agent = maxinforl.make("maxinfo-drq", Cell, save_every=8, **QUICK | {"eval_episodes": 1})
    return agent.learn(16, out=out, callback=callback)


class Kill:
    def on_step(self, run):
        return run.step < 11


@pytest.mark.slow
def test_an_agent_of_images_and_vectors_trains_resumes_saves_and_is_exported(tmp_path):
    whole = train(tmp_path / "whole")
    train(tmp_path / "part", Kill())
    again = maxinforl.resume(tmp_path / "part", env=Cell)
    for agent, name in ((whole, "a"), (again, "b")):
        agent.save(tmp_path / name)
    arrays, others = (maxinforl.files.load_arrays(tmp_path / n / "agent.safetensors")[0] for n in "ab")
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], name)
    obs = stacked(*samples(2))
    expected, _ = whole.predict(obs, deterministic=True)
    assert Cell.action_space.contains(expected) and np.isfinite(whole.information_gain(obs, expected))
    np.testing.assert_array_equal(maxinforl.load(tmp_path / "a").predict(obs, deterministic=True)[0], expected)
    for to in ("numpy", "onnx"):
        deploy.export(whole, to, tmp_path / to)
        np.testing.assert_allclose(bundle.opened(tmp_path / to, to)(obs), expected, atol=1e-5)
    policy, (a, b) = runner.Policy(tmp_path / "numpy"), samples(2)
    policy.see(a, first=True)
    np.testing.assert_allclose(policy.see(b), expected, atol=1e-5)
    with pytest.raises(ValueError, match="lacks its part joints"):
        policy({k: obs[k] for k in ("camera", "inner", "velocity")})
    assert cli.main(["inspect", os.fspath(tmp_path / "whole")]) == 0
