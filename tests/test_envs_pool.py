"""The pool: seeded episodes, true last observations, every autoreset mode, and environments that misbehave."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from maxinforl.envs import episode_seed, make, make_pool
from maxinforl.errors import BadInput, RunFailed


class Diary(gym.Env):
    """Observes (a draw of its seed, steps so far); lasts 2 to 6 steps, as the draw says; even draws terminate."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.draw, self.t = int(self.np_random.integers(1000)), 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        over = self.t >= 2 + self.draw % 5
        return self._obs(), float(action[0]), over and self.draw % 2 == 0, over and self.draw % 2 == 1, {}

    def _obs(self):
        return np.array([self.draw, self.t], np.float32)


class Faulty(Diary):
    """Breaks at step 3 in the way it is told."""

    def __init__(self, fault):
        self.fault = fault

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        if self.t == 3:
            obs, reward = self.fault(obs, reward)
        return obs, reward, False, False, info


def vector(mode, lanes=3):
    return SyncVectorEnv([Diary] * lanes, autoreset_mode=mode)


def quiet_pool(env, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_pool(env, **options)


def test_a_renderer_that_is_not_installed_is_bad_input():
    pool = make_pool("pixels/pendulum-hanging", image_size=16)

    def render():
        raise gym.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")

    pool.envs[0].unwrapped.render = render
    with pytest.raises(BadInput, match="cannot render: pygame is not installed"):
        pool.reset()
    pool.envs[0].unwrapped.render = lambda: None
    with pytest.raises(BadInput, match="this environment renders nothing"):
        pool.reset()


def test_a_renderer_of_mujoco_that_fails_names_the_package():
    pool = make_pool("pixels/pendulum-hanging", image_size=16, max_faults=0)
    pool.envs[0].unwrapped.mujoco_renderer = None  # as Gymnasium's MuJoCo tasks have
    pool.envs[0].unwrapped.render = lambda: 1 / 0
    with pytest.raises(RunFailed, match=r"rendering failed \(ZeroDivisionError.*libegl1 and libgl1"):
        pool.reset()


def test_episode_seeds_are_stable_and_apart():
    assert episode_seed(0, 0, 0) == 1484405855
    seeds = {episode_seed(seed, lane, episode) for seed in range(8) for lane in range(8) for episode in range(8)}
    assert len(seeds) == 512 and all(0 <= seed < 2**31 for seed in seeds)


def test_every_episode_is_reset_with_its_own_seed():
    pool = make_pool(Diary, num_envs=2, seed=5)
    obs = pool.reset()
    seen = {(lane, 0): obs[lane, 0] for lane in range(2)}
    for _ in range(30):
        step = pool.step(np.zeros((2, 1)))
        for lane in np.flatnonzero(step.terminated | step.truncated):
            seen[lane, int(pool.episodes[lane])] = step.obs[lane, 0]
    for (lane, episode), draw in seen.items():
        assert Diary().reset(seed=episode_seed(5, lane, episode))[0][0] == draw
    assert len(seen) > 8


POOLS = {
    "pool": lambda: make_pool(Diary, num_envs=3),
    "disabled": lambda: quiet_pool(vector(AutoresetMode.DISABLED)),
    "same step": lambda: quiet_pool(vector(AutoresetMode.SAME_STEP)),
    "next step": lambda: quiet_pool(vector(AutoresetMode.NEXT_STEP)),
}


@pytest.mark.parametrize("build", POOLS.values(), ids=POOLS.keys())
def test_transitions_are_real_in_every_autoreset_mode(build):
    pool = build()
    obs, rng, real = pool.reset(), np.random.default_rng(0), 0
    returns, lengths, resetting = np.zeros(3), np.zeros(3, int), np.zeros(3, bool)
    for _ in range(60):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        step = pool.step(action)
        np.testing.assert_array_equal(step.valid, ~resetting)
        for lane in np.flatnonzero(step.valid):
            real += 1
            draw, t = obs[lane]
            over = t + 1 >= 2 + draw % 5
            np.testing.assert_array_equal(step.next_obs[lane], [draw, t + 1])
            assert step.reward[lane] == np.float32(2 * action[lane, 0])
            assert (step.terminated[lane], step.truncated[lane]) == (over and draw % 2 == 0, over and draw % 2 == 1)
            returns[lane], lengths[lane] = returns[lane] + 2 * action[lane, 0], lengths[lane] + 1
            if over:
                finished = pool.finished.pop(0)
                assert (finished.lane, finished.length) == (lane, lengths[lane])
                assert finished.ret == pytest.approx(returns[lane], abs=1e-6)
                returns[lane], lengths[lane] = 0, 0
        done = step.terminated | step.truncated
        resetting = done & (pool.__class__.__name__ == "VectorPool" and pool.mode is AutoresetMode.NEXT_STEP)
        fresh = (done | ~step.valid) & ~resetting
        assert (step.obs[fresh, 1] == 0).all() and not (step.terminated | step.truncated)[~step.valid].any()
        obs = step.obs
    assert not pool.finished and real > 120


@pytest.mark.parametrize("name", ["pool", "disabled"])
def test_restored_lanes_go_on_as_if_never_stopped(name):
    pool, rng = POOLS[name](), np.random.default_rng(1)
    obs, history = pool.reset(), [[], [], []]
    for _ in range(23):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        step = pool.step(action)
        for lane in range(3):
            history[lane] = [] if step.terminated[lane] or step.truncated[lane] else [*history[lane], action[lane]]
        obs = step.obs
    assert len({len(lane) for lane in history}) > 1  # lanes at different depths, or the test shows nothing
    pool.finished.clear()
    again = POOLS[name]()
    actions = [np.array(lane, np.float32).reshape(-1, 1) for lane in history]
    np.testing.assert_array_equal(again.restore(pool.episodes.copy(), actions), obs)
    for _ in range(20):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        for a, b in zip(pool.step(action), again.step(action)):
            np.testing.assert_array_equal(a, b)
    assert pool.finished == again.finished and pool.finished
    np.testing.assert_array_equal(pool.episodes, again.episodes)


def test_lanes_that_wait_for_a_longer_history_may_end_meanwhile():
    def episode_of(lane, length):
        draws = (Diary().reset(seed=episode_seed(0, lane, episode))[0][0] for episode in range(100))
        return next(episode for episode, draw in enumerate(draws) if 2 + draw % 5 == length)

    episodes = np.array([episode_of(0, 6), episode_of(1, 2), episode_of(2, 2)])
    actions = [np.zeros((length, 1), np.float32) for length in (5, 1, 0)]
    obs = POOLS["disabled"]().restore(episodes, actions)
    np.testing.assert_array_equal(obs, POOLS["pool"]().restore(episodes, actions))
    np.testing.assert_array_equal(obs[:, 1], [5, 1, 0])


def test_a_replay_that_ends_early_is_an_error():
    with pytest.raises(RunFailed, match="does not repeat"):
        make_pool(Diary).restore(np.array([0]), [np.zeros((50, 1), np.float32)])


def test_vector_environments_that_reset_themselves_say_so():
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        with pytest.warns(UserWarning, match="resumed exactly"):
            pool = make_pool(vector(mode))
        assert not pool.seedable
        with pytest.raises(RunFailed, match="cannot be replayed"):
            pool.restore(np.zeros(3, int), [np.zeros((1, 1), np.float32)] * 3)


def test_vector_environments_with_nested_observations():
    class Nested(Diary):
        observation_space = spaces.Dict({"x": Diary.observation_space, "kind": spaces.Discrete(3)})

        def _obs(self):
            return {"x": super()._obs(), "kind": 2}

    for mode in AutoresetMode:
        pool = quiet_pool(SyncVectorEnv([Nested] * 2, autoreset_mode=mode))
        assert pool.reset().shape == (2, 5)
        for _ in range(10):
            step = pool.step(np.zeros((2, 1)))
        np.testing.assert_array_equal(step.next_obs[:, :3], [[0, 0, 1]] * 2)


def test_actions_are_clipped_and_rescaled_once():
    class Echo(Diary):
        observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def _obs(self):
            return np.array([getattr(self, "last", 0.0)], np.float32)

        def step(self, action):
            self.last = action[0]
            return super().step(action)

    for pool in (make_pool(Echo), make_pool(SyncVectorEnv([Echo], autoreset_mode=AutoresetMode.DISABLED))):
        pool.reset()
        step = pool.step(np.array([[-0.25]]))
        assert step.next_obs[0, 0] == -0.5 and step.action[0, 0] == np.float32(-0.25)
        step = pool.step(np.array([[9.0]]))
        assert step.next_obs[0, 0] == 2 and step.action[0, 0] == 1


def test_arrays_are_never_written_again():
    pool = make_pool(Diary, num_envs=2)
    obs = pool.reset()
    action = np.zeros((2, 1), np.float32)
    steps = [pool.step(action) for _ in range(12)]
    copies = [tuple(np.array(part) for part in step) for step in steps]
    first, action[:] = obs.copy(), 7
    for _ in range(12):
        steps.append(pool.step(np.ones((2, 1), np.float32)))
    np.testing.assert_array_equal(obs, first)
    for step, copy in zip(steps, copies):
        for part, kept in zip(step, copy):
            np.testing.assert_array_equal(part, kept)
    buffers = [part for step in steps for part in (step.action, step.reward, step.next_obs)]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(buffers) for b in buffers[:i])


FAULTS = {
    "NaN observation": (lambda obs, r: (obs * np.nan, r), "observation is nan at entry 0"),
    "infinite observation": (lambda obs, r: (np.array([0, np.inf], np.float32), r), "observation is inf at entry 1"),
    "wrong shape": (lambda obs, r: (np.zeros(3, np.float32), r), r"shape \(3,\).*\(2,\)"),
    "wrong dtype": (lambda obs, r: (np.array(["a", "b"]), r), "dtype <U1.*float32"),
    "no reward": (lambda obs, r: (obs, None), "reward is None"),
    "reward vector": (lambda obs, r: (obs, np.zeros(2)), "reward is array"),
    "NaN reward": (lambda obs, r: (obs, np.nan), "reward is nan"),
    "huge reward": (lambda obs, r: (obs, 1e39), r"reward is 1e\+39, which is more than float32 holds"),
    "exception": (lambda obs, r: {}["gone"], "raised KeyError: 'gone'"),
    "lines of an exception": (lambda obs, r: float("a\nb"), r"raised ValueError: could not convert string"),
    "reward table": (lambda obs, r: (obs, np.zeros((3, 3))), r"reward is array\(\[\[0\., 0\., 0\.\], \[0\."),
}


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_misbehaviour_names_lane_episode_step_and_field(fault, words):
    def build():
        built.append(1)
        return Faulty(fault if len(built) == 2 else lambda *ok: ok)

    built = []
    pool = make_pool(build, num_envs=2)
    pool.reset()
    for _ in range(2):
        pool.step(np.zeros((2, 1)))
    with pytest.raises(RunFailed, match=rf"environment 1 \(Faulty\), episode 0, step 3\b.*{words}") as caught:
        pool.step(np.zeros((2, 1)))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_misbehaviour_in_a_vector_environment_is_caught_too():
    for fault, words in (FAULTS[name] for name in ("NaN observation", "NaN reward", "huge reward", "exception")):
        pool = quiet_pool(SyncVectorEnv([lambda fault=fault: Faulty(fault)] * 2, autoreset_mode="Disabled"))
        pool.reset()
        for _ in range(2):
            pool.step(np.zeros((2, 1)))
        with pytest.raises(RunFailed, match=f"step 3.*{words}"):
            pool.step(np.zeros((2, 1)))


def test_a_part_outside_its_space_is_caught():
    class Wild(Diary):
        observation_space = spaces.Dict({"kind": spaces.Discrete(3)})

        def _obs(self):
            return {"kind": -1 if self.t else 0}

    pool = make_pool(Wild)
    pool.reset()
    with pytest.raises(RunFailed, match=r"step 1: the observation holds -1"):
        pool.step(np.zeros((1, 1)))


def test_an_exception_after_500_steps_keeps_its_cause():
    class Breaks(Diary):
        def step(self, action):
            obs, reward, *_, info = super().step(action)
            if self.t > 500:
                raise OSError("simulator lost")
            return obs, reward, False, False, info

    pool = make_pool(Breaks)
    pool.reset()
    for _ in range(500):
        pool.step(np.zeros((1, 1)))
    with pytest.raises(RunFailed, match=r"step 501 raised OSError: simulator lost") as caught:
        pool.step(np.zeros((1, 1)))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_failing_reset_is_named():
    class NoStart(Diary):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("no licence")

    with pytest.raises(RunFailed, match=r"environment 0 \(NoStart\), episode 0, reset raised RuntimeError: no licence"):
        make_pool(NoStart)


def test_a_reset_that_ignores_its_seed_is_warned_about_once():
    class Deaf(Diary):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None)

    with pytest.warns(UserWarning, match="ignores its seed") as caught:
        pool = make_pool(Deaf, num_envs=2)
    assert len(caught) == 1 and not pool.seedable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.reset()
        pool.step(np.zeros((2, 1)))
    assert make_pool(Diary).seedable


def test_actions_that_are_not_numbers_or_do_not_fit_are_refused():
    pool = make_pool(Diary)
    pool.reset()
    with pytest.raises(RunFailed, match="not finite"):
        pool.step(np.array([[np.nan]]))
    with pytest.raises(BadInput, match="shape"):
        pool.step(np.zeros(1))


def test_what_a_pool_cannot_be_made_of():
    with pytest.raises(BadInput, match="function that makes it"):
        make_pool(Diary(), num_envs=2)
    with pytest.raises(BadInput, match="at least 1"):
        make_pool(Diary, num_envs=0)
    with pytest.raises(BadInput, match="inside the vector"):
        make_pool(vector(AutoresetMode.DISABLED), action_repeat=2)


def test_repeat_and_cost_can_live_inside_a_vector_environment():
    lanes = [lambda: make(Diary, action_repeat=2, action_cost=0.5)] * 2
    pool = make_pool(SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.DISABLED))
    pool.reset()
    step = pool.step(np.full((2, 1), 0.5))
    np.testing.assert_allclose(step.reward, 2 * (1.0 - 0.5 * 1.0))
    assert isinstance(pool.vector, VectorEnv)


class Vandal(Diary):
    """Writes into the action it is given."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        reward = float(action[0])
        action *= 0.5
        obs, _, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("repeat", [1, 2])
def test_an_environment_cannot_change_the_action_that_is_stored(repeat):
    pool = make_pool(Vandal, num_envs=2, action_repeat=repeat, action_cost=0.5)
    pool.reset()
    action = np.array([[0.8], [-0.4]], np.float32)
    step = pool.step(action)
    np.testing.assert_array_equal(step.action, np.float32([[0.8], [-0.4]]))
    np.testing.assert_array_equal(action, step.action)
    np.testing.assert_allclose(step.reward, repeat * np.float32([0.8 - 0.4, -0.4 - 0.2]), rtol=1e-6)


def test_a_vector_environment_cannot_change_the_action_that_is_stored():
    pool = quiet_pool(SyncVectorEnv([Vandal] * 2, autoreset_mode=AutoresetMode.DISABLED))
    pool.reset()
    np.testing.assert_array_equal(pool.step(np.float32([[0.8], [-0.4]])).action, np.float32([[0.8], [-0.4]]))
