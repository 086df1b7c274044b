"""The DeepMind Control Suite: sizes, seeding, time limits, rendering."""

import numpy as np
import pytest

pytest.importorskip("dm_control")

from maxinforl.envs import gl, make
from maxinforl.envs.dmc import DMControl, tasks
from maxinforl.errors import BadInput

# every task of the paper, by state: observation and action sizes
SIZES = {
    "cartpole-swingup_sparse": (5, 1),
    "reacher-hard": (6, 2),
    "finger-spin": (9, 2),
    "hopper-hop": (15, 4),
    "finger-turn_hard": (12, 2),
    "walker-run": (24, 6),
    "cheetah-run": (17, 6),
    "quadruped-run": (78, 12),
    "quadruped-walk": (78, 12),
    "humanoid-stand": (67, 21),
    "humanoid-walk": (67, 21),
    "humanoid-run": (67, 21),
    "acrobot-swingup": (6, 1),
    "ball_in_cup-catch": (8, 2),
    "dog-stand": (223, 38),
    "dog-walk": (223, 38),
    "dog-run": (223, 38),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [pytest.param(*item, id=item[0], marks=[pytest.mark.slow] * item[0].startswith("dog")) for item in SIZES.items()],
)
def test_paper_tasks_have_their_sizes_repeat_from_a_seed_and_truncate(name, sizes):
    env = make(f"dmc/{name}", action_repeat=2)
    assert (*env.observation_space.shape, *env.action_space.shape) == sizes
    rng = np.random.default_rng(0)
    low, high = env.action_space.low, env.action_space.high
    actions = rng.uniform(low, high, (500, *low.shape)).astype(np.float32)
    first = [env.reset(seed=3)[0], *(env.step(action)[0] for action in actions[:200])]
    env.reset(seed=8)
    second = [env.reset(seed=3)[0]]
    for t, action in enumerate(actions, 1):
        obs, reward, terminated, truncated, _ = env.step(action)
        second.append(obs)
        assert not terminated and truncated == (t == 500) and 0 <= reward <= 2
    np.testing.assert_array_equal(first, second[:201])
    assert obs.dtype == np.float32 and np.ptp(np.array(second), axis=0).max() > 0


def test_a_fresh_process_state_does_not_matter():
    used, fresh = make("dmc/cheetah-run"), make("dmc/cheetah-run")
    used.reset(seed=1)
    for _ in range(30):
        used.step(used.action_space.sample())
    np.testing.assert_array_equal(used.reset(seed=2)[0], fresh.reset(seed=2)[0])
    action = np.full(6, 0.3, np.float32)
    for _ in range(100):
        np.testing.assert_array_equal(used.step(action)[0], fresh.step(action)[0])


def test_seeds_differ_and_no_seed_goes_on():
    env = make("dmc/reacher-hard")
    starts = [env.reset(seed=0)[0], env.reset(seed=1)[0], env.reset()[0]]
    assert len({start.tobytes() for start in starts}) == 3
    env.reset(seed=1)
    np.testing.assert_array_equal(env.reset()[0], starts[2])


def test_observations_are_concatenated_in_spec_order():
    env = DMControl("walker-run")
    obs, _ = env.reset(seed=0)
    parts = env.task.task.get_observation(env.task.physics)
    assert list(parts) == ["orientations", "height", "velocity"]
    np.testing.assert_array_equal(obs[:14], parts["orientations"].astype(np.float32))
    assert obs[14] == np.float32(parts["height"])


def test_a_last_discount_of_zero_terminates():
    env = DMControl("lqr-lqr_2_1")
    env.reset(seed=0)
    with env.task.physics.reset_context():
        pass  # all positions and velocities are zero, where this task ends
    *_, terminated, truncated, _ = env.step(np.zeros(1))
    assert terminated and not truncated


def test_lqr_has_no_action_bounds_and_is_refused():
    with pytest.raises(BadInput, match="no bounds"):
        make("dmc/lqr-lqr_2_1")


def test_native_actions_of_the_quadruped_are_not_symmetric():
    assert make("dmc/quadruped-walk").action_space.high.max() > 1


def test_all_suite_tasks_are_listed():
    assert len(tasks()) == 51 and "humanoid_CMU-run" in tasks()


@pytest.mark.parametrize("args", [{"camera": 9}, {"camera": "x"}, {"typo": 1}, {"fast_render": "yes"}])
def test_bad_arguments(args):
    with pytest.raises(BadInput):
        make("dmc/cartpole-swingup", env_args=args)


def test_mujoco_4_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr("mujoco.__version__", "4.0.0")
    with pytest.raises(BadInput, match="mujoco<4"):
        make("dmc/cartpole-swingup")


def test_task_arguments_pass_through():
    env = make("dmc/cartpole-swingup", env_args={"time_limit": 0.05})
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[3] for _ in range(5)]
    assert ends == [False] * 4 + [True]


def test_unknown_task_suggests():
    with pytest.raises(BadInput, match="dmc/cartpole-swingup"):
        make("dmc/cartpol-swingup")
    with pytest.raises(BadInput, match="unknown"):
        make("dmc/cartpole")


@pytest.mark.parametrize("name", ["cartpole-swingup_sparse", pytest.param("quadruped-walk", marks=pytest.mark.slow)])
def test_pixels(name):
    frames = {}
    for fast in (False, True):
        env = make(f"pixels/dmc/{name}", image_size=48, action_repeat=2, env_args={"fast_render": fast})
        frames[fast], _ = env.reset(seed=0)
        moved = [env.step(env.action_space.high)[0] for _ in range(10)][-1]
        assert frames[fast].shape == (48, 48, 3) and frames[fast].dtype == np.uint8
        assert frames[fast].std() > 5 and (moved != frames[fast]).any()
        np.testing.assert_array_equal(env.reset(seed=0)[0], frames[fast])
    difference = np.abs(frames[True].astype(int) - frames[False]).mean()
    assert 0 < difference < 15


def test_the_quadruped_is_seen_by_its_own_camera():
    assert DMControl("walker-run").camera == 0

    def seen(**camera: int) -> np.ndarray:
        env = DMControl("quadruped-walk", "rgb_array", 16, fast_render=True, **camera)
        env.reset(seed=0)
        return env.render()

    np.testing.assert_array_equal(seen(), seen(camera=2))
    assert (seen() != seen(camera=0)).any()


@pytest.mark.parametrize("camera", [9, 1.0, "lookatcart"])
def test_a_camera_is_a_number_that_the_task_has(camera):
    with pytest.raises(BadInput, match=r"has the cameras 0 to [0-9]+, and -1 moves freely"):
        DMControl("cartpole-balance", "rgb_array", 16, camera)


@pytest.mark.parametrize("wrong", [{"camera_id": 77}, {"camera_name": "nosuch"}])
def test_a_camera_of_gymnasiums_tasks_is_one_that_they_have(wrong):
    with pytest.raises(BadInput, match=f"has no camera {next(iter(wrong.values()))!r}: it has "):
        make("pixels/HalfCheetah-v5", env_args=wrong, image_size=16)
    make("pixels/HalfCheetah-v5", env_args={"camera_name": "track"}, image_size=16).close()


def test_errors_of_opengl_are_told_from_others():
    assert gl.raised(RuntimeError("invalid value for environment variable MUJOCO_GL: nonsense"))
    assert not gl.raised(RuntimeError("no such file"))
