"""The one wrapper: flattening, repeat, cost, native units, pixels, and what it refuses."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from maxinforl.envs import NormalizedActions, catalogue, default_action_repeat, make
from maxinforl.envs.pixels import resize
from maxinforl.envs.wrapper import rescale
from maxinforl.errors import BadInput, RunFailed


class Line(gym.Env):
    """Counts base steps; reward 1 each; ends at `length`."""

    def __init__(self, observation=None, action=None, length=5, observe=None):
        self.observation_space = observation or spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = action or spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 3.0]), dtype=np.float64)
        self.length, self.observe, self.seen = length, observe, []

    def _obs(self):
        return self.observe() if self.observe else np.array([float(self.t)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen.append(action)
        self.t += 1
        return self._obs(), 1.0, self.t >= self.length, False, {}


def test_repeat_sums_rewards_and_stops_at_the_end():
    env = make(Line(length=5), action_repeat=3)
    env.reset(seed=0)
    obs, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert (obs[0], reward, terminated, info["base_steps"]) == (3, 3.0, False, 3)
    obs, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert (obs[0], reward, terminated, info["base_steps"]) == (5, 2.0, True, 2)


def test_repeat_stops_at_truncation_and_counts_base_steps():
    env = make("pendulum-hanging", action_repeat=3)
    env.reset(seed=0)
    steps = []
    while True:
        *_, truncated, info = env.step(np.zeros(1, np.float32))
        steps.append(info["base_steps"])
        if truncated:
            break
    assert steps == 66 * [3] + [2]


@pytest.mark.parametrize("repeat", [1, 2])
def test_action_cost_is_paid_on_every_base_step_in_native_units(repeat):
    action = np.array([1.5, 2.0], np.float32)
    free, dear = (make(Line(length=9), action_repeat=repeat, action_cost=k) for k in (0.0, 0.2))
    free.reset(seed=0)
    dear.reset(seed=0)
    assert free.step(action)[1] - dear.step(action)[1] == pytest.approx(repeat * 0.2 * 2.5, abs=1e-12)


def test_action_cost_after_an_early_end_counts_only_the_steps_taken():
    env = make(Line(length=1), action_repeat=4, action_cost=1.0)
    env.reset(seed=0)
    assert env.step(np.array([0.0, 2.0], np.float32))[1] == 1.0 - 2.0


def test_no_cost_and_no_repeat_change_nothing():
    bare, env = gym.make("Pendulum-v1"), make("Pendulum-v1", action_repeat=1, action_cost=0.0)
    bare.reset(seed=4)
    env.reset(seed=4)
    for _ in range(50):
        action = bare.action_space.sample()
        expected, got = bare.step(action), env.step(action)
        np.testing.assert_array_equal(expected[0], got[0])
        assert expected[1:4] == got[1:4] and isinstance(got[1], float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalised_maps_onto_the_native_box_and_clips(dtype):
    bare = Line(action=spaces.Box(np.array([-2, 0], dtype), np.array([2, 3], dtype), dtype=dtype))
    env = NormalizedActions(make(bare))
    env.reset(seed=0)
    for action in ([0.0, 0.0], [1.0, -1.0], [7.0, -7.0]):
        env.step(np.array(action, np.float32))
    np.testing.assert_allclose(bare.seen, [[0, 1.5], [2, 0], [2, 0]])


@given(st.floats(-1e6, 1e6, width=32), st.floats(0.0009765625, 1e6, width=32), st.floats(-1, 1, width=32))
def test_rescaled_actions_never_leave_the_box(low, width, action):
    low, high = np.float32(low), np.float32(low) + np.float32(width)
    box = spaces.Box(np.array([low]), np.array([high]), dtype=np.float32)
    to_native = rescale(box)
    assert box.contains(to_native(np.array([action], np.float32)))
    tolerance = 1e-6 * float(max(1, abs(low), abs(high)))
    for end, bound in ((-1, low), (1, high)):
        native = to_native(np.array([end], np.float32))
        assert box.contains(native) and float(native[0]) == pytest.approx(float(bound), abs=tolerance)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (64, 5)])
def test_actions_of_a_symmetric_box_are_scaled_entry_by_entry(shape):
    half = np.array([1e-20, 0.3, 2.0, 17.0, 1e30], np.float32)
    action = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    np.testing.assert_array_equal(rescale(spaces.Box(-half, half))(action), half * action)


def test_the_unit_box_is_passed_through_bit_for_bit():
    to_native = rescale(spaces.Box(-1, 1, (3,), np.float32))
    action = np.array([0.1, -0.7, 1.0], np.float32)
    assert to_native(action) is action


def test_nested_observations_flatten_in_the_order_of_the_space():
    space = spaces.Dict(
        {
            "b": spaces.Tuple([spaces.Box(0, 9, (2, 2), np.float64), spaces.Discrete(3, start=5)]),
            "a": spaces.MultiBinary(2),
            "c": spaces.MultiDiscrete([2, 3]),
        }
    )
    raw = {"b": (np.arange(4.0).reshape(2, 2), 6), "a": np.array([1, 0], np.int8), "c": np.array([1, 2])}
    env = make(Line(space, observe=lambda: raw))
    obs, _ = env.reset(seed=0)
    parts = {"a": [1, 0], "b": [0, 1, 2, 3, 0, 1, 0], "c": [0, 1, 0, 0, 1]}
    np.testing.assert_array_equal(obs, np.concatenate([parts[key] for key in space.spaces]))
    assert obs.dtype == np.float32 and env.observation_space.contains(obs)


def test_images_stay_uint8_and_single_frames():
    image = np.full((8, 8), 7, np.uint8)
    env = make(Line(spaces.Dict({"camera": spaces.Box(0, 255, (8, 8), np.uint8)}), observe=lambda: {"camera": image}))
    obs, _ = env.reset(seed=0)
    assert obs.shape == (8, 8, 1) and obs.dtype == np.uint8 and env.observation_space.contains(obs)


def test_observations_are_copies():
    buffer = np.zeros(1, np.float32)
    env = make(Line(spaces.Box(-1, 1, (1,), np.float32), observe=lambda: buffer))
    obs, _ = env.reset(seed=0)
    buffer[:] = 9
    assert obs[0] == 0


BOX = spaces.Box(-1, 1, (2,), np.float32)
REFUSED = {
    "discrete actions": (lambda: Line(action=spaces.Discrete(3)), "continuous"),
    "integer actions": (lambda: Line(action=spaces.Box(0, 3, (2,), np.int64)), "continuous"),
    "unbounded actions": (lambda: Line(action=spaces.Box(-np.inf, 1, (1,), np.float32)), "no bounds"),
    "float images": (lambda: Line(spaces.Box(0, 1, (8, 8, 3), np.float32)), "uint8"),
    "channels first": (lambda: Line(spaces.Box(0, 255, (3, 8, 8), np.uint8)), "channels last"),
    "channels first in a Dict": (
        lambda: Line(spaces.Dict({"i": spaces.Box(0, 255, (3, 8, 8), np.uint8), "s": BOX})),
        "channels last",
    ),
    "text": (lambda: Line(spaces.Text(4)), "Text"),
    "not an environment": (lambda: object(), "gymnasium.Env"),
    "a vector environment": (lambda: gym.make_vec("Pendulum-v1", 2), "make_pool"),
}


@pytest.mark.parametrize(("build", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused_in_a_sentence(build, word):
    with pytest.raises(BadInput, match=word) as caught:
        make(build())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "near"), [("Pendulm-v1", "Pendulum-v1"), ("h1-stan", "h1-stand"), ("jax/car", "")])
def test_unknown_names_suggest_the_nearest(name, near):
    with pytest.raises(BadInput, match=f"unknown environment '{name}'.*{near}"):
        make(name)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("pendulum-hanging", {"typo": 1}),
        ("pendulum-hanging", {"time_limit_is_terminal": "false"}),
        ("Pendulum-v1", {"typo": 1}),
        ("jax/mountain-car", {"typo": 1}),
    ],
)
def test_bad_environment_arguments_are_named(name, args):
    with pytest.raises(BadInput, match=next(iter(args))):
        make(name, env_args=args)


def test_environment_arguments_reach_the_environment_as_mapping_or_pairs():
    for args in ({"g": 3.0}, (("g", 3.0),)):
        assert make("Pendulum-v1", env_args=args).unwrapped.g == 3.0


@pytest.mark.parametrize("options", [{"action_repeat": 0}, {"action_cost": -1.0}, {"action_cost": float("nan")}])
def test_bad_wrapper_options_are_refused(options):
    with pytest.raises(BadInput):
        make("Pendulum-v1", **options)


def test_factories_get_the_arguments():
    assert make(lambda length: Line(length=length), env_args={"length": 3}).unwrapped.length == 3


def test_names_and_repeats():
    names = catalogue()
    assert {"pendulum-hanging", "h1-stand", "h1-walk", "h1-run", "jax/mountain-car"} <= names.keys()
    assert all(line and "\n" not in line for line in names.values())
    repeats = {"dmc/walker-run": 2, "pixels/dmc/walker-run": 2, "Pendulum-v1": 1, "pixels/Pendulum-v1": 1}
    assert {name: default_action_repeat(name) for name in repeats} == repeats
    assert default_action_repeat(Line()) == 1


def test_resize_averages_areas():
    checks = np.kron(np.array([[0, 200], [100, 40]]), np.ones((3, 3)))[..., None].repeat(3, -1).astype(np.uint8)
    np.testing.assert_array_equal(resize(checks, 2)[..., 0], [[0, 200], [100, 40]])
    assert (resize(checks, 1) == 85).all()
    ramp = np.arange(5, dtype=np.uint8)[None, :, None].repeat(5, 0).repeat(3, 2) * 10
    # the first of two shares covers pixels 0, 1 and half of 2
    np.testing.assert_array_equal(resize(ramp, 2)[0, :, 0], [round((0 + 10 + 10) / 2.5), round((10 + 30 + 40) / 2.5)])


def test_pixels_of_the_pendulum_show_the_pendulum():
    env = make("pixels/pendulum-hanging", image_size=32)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (32, 32, 3) and obs.dtype == np.uint8
    assert obs[:14].min() > 250 > obs[20:].min()  # nothing above the pivot, a rod below


def test_frames_inside_a_repeat_are_not_drawn():
    env = make("pixels/pendulum-hanging", action_repeat=4, image_size=16)
    env.reset(seed=0)
    drawn = []
    bare = env.unwrapped
    real = bare.render
    bare.render = lambda: drawn.append(1) or real()
    env.step(np.zeros(1, np.float32))
    assert len(drawn) == 1


def test_a_wrong_shape_or_dtype_is_caught():
    for raw in (np.zeros(2), np.array(["a"]), np.array([None])):
        with pytest.raises(RunFailed, match="observation has"):
            make(Line(observe=lambda raw=raw: raw)).reset(seed=0)


def test_an_argument_with_a_value_that_cannot_be_is_one_sentence():
    with pytest.raises(BadInput, match=r"Pendulum-v1 cannot be built with .* max_episode_steps=-5: ") as caught:
        make("Pendulum-v1", env_args={"max_episode_steps": -5})
    assert "\n" not in str(caught.value)
