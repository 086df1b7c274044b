"""Environments that break: made anew, their episode cut, counted, and the run ended when there are too many."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import maxinforl
from maxinforl.envs import Watchdog, episode_seed, make, make_pool
from maxinforl.errors import BadInput, RunFailed
from maxinforl.training.evaluate import EVALUATION, Evaluator

TIMEOUT = 3.0  # seconds until a worker counts as hung


class Brittle(gym.Env):
    """Observes (a draw of its seed, steps so far) for 5 steps; breaks at step 3 of the episodes it is told.

    `breaks` are the seeds of those episodes; `how` names a method.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)
    closed = 0

    def __init__(self, breaks=(), how="exception", at=3, note=None):
        self.breaks, self.how, self.at, self.bad, self.note = breaks, how, at, False, note

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.draw, self.t, self.bad = float(self.np_random.integers(1000)), 0, seed in self.breaks
        return self.observed(1.0)[0], {}

    def step(self, action):
        self.t += 1
        obs, reward = self.observed(float(action[0]))
        return obs, reward, False, self.t >= 5, {}

    def observed(self, reward):
        obs = np.array([self.draw, self.t], np.float32)
        return getattr(self, self.how)(obs, reward) if self.bad and self.t == self.at else (obs, reward)

    def exception(self, obs, reward):
        raise OSError("simulator lost")

    def nan_observation(self, obs, reward):
        return obs * np.nan, reward

    def nan_reward(self, obs, reward):
        return obs, np.nan

    def huge_reward(self, obs, reward):
        return obs, -1e39

    def huge_observation(self, obs, reward):
        return obs.astype(np.float64) + 1e39, reward

    def leave(self, obs, reward):
        sys.exit("licence expired")

    def shape(self, obs, reward):
        return np.zeros(3, np.float32), reward

    def exit(self, obs, reward):
        os._exit(7)

    def kill(self, obs, reward):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self, obs, reward):
        time.sleep(1000)

    def leave_a_note_and_hang(self, obs, reward):
        self.note.touch()
        self.hang(obs, reward)

    def close(self):
        type(self).closed += 1
        if self.bad:
            raise RuntimeError("closing fails too")


def brittle(how="exception", lane=1, episodes=(0,), at=3):
    return Brittle([episode_seed(0, lane, e) for e in episodes], how, at)


def always(how="exception"):
    return Brittle([episode_seed(0, 0, e) for e in range(100)], how)


class Halves:
    """How a worker is told which environment to make: an object that its process can import."""

    def __init__(self, how, **options):
        self.how, self.options = how, options

    def __call__(self):
        return brittle(self.how, **self.options)


def play(pool, steps):
    pool.told = []
    pool.report_fault = pool.told.append
    first = pool.reset()
    return first, [pool.step(np.full((pool.num_envs, 1), 0.1 * (i + 1), np.float32)) for i in range(steps)]


def first_of(lane, episode):
    return Brittle().reset(seed=episode_seed(0, lane, episode))[0]


def check_cut(pool, steps):
    """Lane 1 broke at its third step and lane 0 did not notice."""
    np.testing.assert_array_equal([s.valid.tolist() for s in steps[:3]], [[True, True], [True, True], [True, False]])
    assert steps[2].truncated.tolist() == [False, True] and not steps[2].terminated.any()
    np.testing.assert_array_equal(steps[2].obs[1], first_of(1, 1))
    np.testing.assert_array_equal(steps[2].obs[0], [first_of(0, 0)[0], 3])
    assert steps[2].reward[1] == 0 and np.isfinite(steps[2].next_obs).all()
    np.testing.assert_array_equal(steps[3].next_obs[1], [first_of(1, 1)[0], 1])
    assert pool.faults == 1 and len(pool.told) == 1 and pool.episodes.tolist() == [0, 1]
    (cut,) = pool.finished
    assert (cut.lane, cut.length) == (1, 2) and cut.ret == pytest.approx(0.2 + 0.4)


KINDS = {
    "exception": "raised OSError: simulator lost",
    "nan_observation": "observation is nan",
    "nan_reward": "reward is nan",
    "huge_reward": r"reward is -1e\+39, which is more than float32 holds",
    "huge_observation": "observation is inf at entry 0",
    "leave": "raised SystemExit: licence expired",
    "shape": r"shape \(3,\)",
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_broken_lane_is_made_anew_and_its_episode_cut(how):
    before = Brittle.closed
    pool = make_pool(Halves(how), num_envs=2, max_faults=1)
    _, steps = play(pool, 4)
    check_cut(pool, steps)
    assert Brittle.closed == before + 1
    with pytest.raises(RunFailed, match=KINDS[how]):
        play(make_pool(Halves(how), num_envs=2, max_faults=0), 4)


def test_a_reset_that_breaks_keeps_the_transition_before_it():
    pool = make_pool(Halves("exception", episodes=(1, 2), at=0), num_envs=2, max_faults=2)
    _, steps = play(pool, 5)
    assert steps[4].valid.all() and steps[4].truncated.all()
    np.testing.assert_array_equal(steps[4].next_obs[1], [first_of(1, 0)[0], 5])
    np.testing.assert_array_equal(steps[4].obs[1], first_of(1, 3))
    assert pool.faults == 2 and pool.episodes.tolist() == [1, 3] and [f.length for f in pool.finished] == [5, 5]


def test_too_many_faults_end_the_run_with_the_last_one():
    pool = make_pool(always, max_faults=3)
    with pytest.raises(RunFailed, match=r"episode 3, step 3 raised OSError: simulator lost.*--max-faults 3"):
        play(pool, 100)
    assert pool.faults == 4 and len(pool.told) == 3


def test_what_never_worked_and_what_cannot_be_made_anew_is_not_survived():
    with pytest.raises(RunFailed, match="episode 0, reset"):
        make_pool(lambda: brittle(lane=0, at=0), max_faults=5)
    pool = make_pool(lambda: brittle(lane=0, at=1), max_faults=5)
    with pytest.raises(RunFailed, match="episode 0, step 1"):
        play(pool, 1)
    with pytest.raises(RunFailed, match="episode 0, step 3"):
        play(make_pool(brittle(lane=0), max_faults=5), 3)


def test_an_environment_made_anew_must_be_the_same_kind():
    class Other(Brittle):
        observation_space = spaces.Box(-1, 1, (3,), np.float32)

        def reset(self, **kw):
            return np.zeros(3, np.float32), {}

    made = []
    pool = make_pool(lambda: made.append(1) or (brittle(lane=0) if len(made) == 1 else Other()), max_faults=5)
    with pytest.raises(RunFailed, match="other observations"):
        play(pool, 3)


def test_a_restored_pool_goes_on_across_a_fault():
    pool, again = (make_pool(Halves("exception", episodes=(0, 2)), num_envs=2, max_faults=5) for _ in range(2))
    _, steps = play(pool, 4)
    again.report_fault = again.finished.append
    np.testing.assert_array_equal(
        again.restore(pool.episodes, [[s.action[0] for s in steps], [steps[3].action[1]]]), steps[3].obs
    )
    for i in range(20):
        action = np.full((2, 1), 0.01 * i, np.float32)
        for a, b in zip(pool.step(action), again.step(action)):
            np.testing.assert_array_equal(a, b)
    assert pool.faults == again.faults + 1 == 2
    np.testing.assert_array_equal(pool.episodes, again.episodes)


# ------------------------------------------------------------------ worker processes


@pytest.mark.slow
def test_workers_give_what_environments_in_this_process_give():
    pools = [make_pool(Brittle, num_envs=2, workers=w, action_repeat=2) for w in (False, True)]
    try:
        (one, steps), (other, others) = (play(pool, 7) for pool in pools)
        np.testing.assert_array_equal(one, other)
        for step, its in zip(steps, others):
            for a, b in zip(step, its):
                np.testing.assert_array_equal(a, b)
        assert pools[0].finished == pools[1].finished and pools[1].seedable
    finally:
        pools[1].close()


@pytest.mark.slow
def test_workers_render():
    pools = [make_pool("pixels/dmc/cartpole-balance", workers=w, image_size=16) for w in (False, True)]
    try:
        (one, steps), (other, others) = (play(pool, 2) for pool in pools)
        assert one.shape == (1, 16, 16, 3) and one.std() > 0
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(steps[-1].obs, others[-1].obs)
    finally:
        for pool in pools:
            pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "hang"])
def test_a_worker_that_dies_or_hangs_is_restarted(how):
    pool = make_pool(Halves(how), num_envs=2, max_faults=1, workers=True, env_timeout=TIMEOUT)
    handles = lambda: len(os.listdir("/proc/self/fd"))
    gc.disable()  # handles come back at once, not when Python next looks for cycles
    before = handles()
    try:
        _, steps = play(pool, 4)
        check_cut(pool, steps)
        assert handles() == before
        assert {"exit": "ended with code 7", "hang": "did not answer within 3 s"}[how] in pool.told[0]
        pool.envs[0]._process.kill()  # type: ignore[attr-defined]
        with pytest.raises(RunFailed, match=r"environment 0 \(Brittle\), episode 0, step 5: .* killed by SIGKILL"):
            pool.step(np.zeros((2, 1)))
    finally:
        gc.enable()
        pool.close()


@pytest.mark.slow
def test_an_exception_in_a_worker_is_told_as_in_this_process():
    pool = make_pool(Halves("exception"), num_envs=2, workers=True)
    try:
        with pytest.raises(RunFailed, match=r"episode 0, step 3: raised OSError: simulator lost"):
            play(pool, 3)
    finally:
        pool.close()


def test_what_a_worker_cannot_make_is_refused():
    with pytest.raises(BadInput, match="top level of a module"):
        make_pool(lambda: Brittle(), workers=True)
    with pytest.raises(BadInput, match="exists"):
        make_pool(Brittle(), workers=True)
    gym.register("OnlyHere-v0", Brittle)
    with pytest.raises(BadInput, match="module:Name"):
        make_pool("OnlyHere-v0", workers=True)


PARENT = """
import numpy as np
from maxinforl.envs import make_pool
from test_faults import Halves

if __name__ == "__main__":
    pool = make_pool(Halves("hang"), num_envs=2, workers=True, env_timeout=1000)
    print(*(env._process.pid for env in pool.envs), flush=True)
    pool.reset()
    for _ in range(3):
        pool.step(np.zeros((2, 1)))
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_end_with_their_parent_and_leave_signals_to_it(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    here = str(Path(__file__).parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    pids = [int(p) for p in parent.stdout.readline().split()]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(1)
    assert len(pids) == 2 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


# ------------------------------------------------------------------ hangs in this process


def test_the_watchdog_names_what_hangs_and_nothing_else():
    pool = make_pool(Brittle)
    said = []
    with Watchdog(0.2, [pool], said.append):
        play(pool, 3)
        time.sleep(0.5)  # not in an environment: learning may take its time
        assert said == []
        pool._call(0, time.sleep, 0.6)
    assert len(said) == 1 and "environment 0 (Brittle), episode 0, step 3 has hung for 0.2 s" in said[0]


def test_a_process_that_was_suspended_has_not_hung(monkeypatch):
    """The clock went on while nothing ran, and the watchdog ticked once."""
    pool, said = make_pool(Brittle), []
    now = time.monotonic
    with Watchdog(1.0, [pool], said.append):
        monkeypatch.setattr(time, "monotonic", lambda: now() + (1000 if pool.entered else 0))
        pool._call(0, time.sleep, 0.4)
    assert said == []


# ------------------------------------------------------------------ in evaluation


class Hangs:
    """Hangs in the first episode of the first evaluation, once: where it hung, a file says so."""

    def __init__(self, path):
        self.path = path

    def __call__(self):
        first = not self.path.exists()
        return Brittle([episode_seed(EVALUATION, 0, 0)] if first else [], "leave_a_note_and_hang", note=self.path)


@pytest.mark.slow
def test_an_evaluation_in_workers_survives_a_hang(tmp_path):
    settings = {"workers": True, "env_timeout": TIMEOUT, "eval_episodes": 1, "learning_starts": 1000}
    agent = maxinforl.make("sac", Hangs(tmp_path / "hung"), **settings)
    with pytest.warns(
        UserWarning, match="environment 0 of the evaluation .* did not answer within 3 s; it was made anew"
    ):
        agent.learn(1)
    assert agent.trainer is not None
    agent.trainer.close()
    assert agent.evaluations[0][1].lengths.tolist() == [5]


@pytest.mark.parametrize("how", ["nan_observation", "nan_reward"])
def test_numbers_that_are_not_finite_are_faults_of_an_evaluation_too(how):
    bad, told = episode_seed(EVALUATION, 0, 0), []
    again = Evaluator([make(Brittle([bad], how))], 0, makers=[lambda: make(Brittle())])
    again.report_fault = told.append
    act = lambda obs: np.full((1, 1), 0.5, np.float32)
    assert again(act, 0).returns.tolist() == [5.0]
    assert len(told) == 1 and "is nan" in told[0] and told[0].endswith("made anew, and its episode begins again")
    with pytest.raises(RunFailed, match="is nan"):
        Evaluator([make(Brittle([bad], how))], 0)(act, 0)


def test_an_evaluation_plays_the_episode_again_in_an_environment_made_anew():
    bad = episode_seed(EVALUATION, 1, 0)
    makers = [lambda: Brittle(), lambda: Brittle([bad] if not made else [])]
    made = []
    envs = [make(maker()) for maker in makers]
    made.append(1)
    again = [lambda maker=maker: make(maker()) for maker in makers]
    act = lambda obs: np.full((2, 1), 0.5, np.float32)
    with pytest.warns(UserWarning, match="made anew"):
        result = Evaluator(envs, 0, makers=again)(act, 0)
    assert result.returns.tolist() == [5.0, 5.0] and result.lengths.tolist() == [5, 5]
    stubborn = [lambda: make(Brittle()), lambda: make(Brittle([bad]))]
    lost = pytest.raises(RunFailed, match=r"environment 1 of the evaluation \(Brittle\) raised OSError")
    with lost, pytest.warns(UserWarning, match="made anew"):
        Evaluator([m() for m in stubborn], 0, makers=stubborn)(act, 0)
    with pytest.raises(RunFailed, match="simulator lost"):
        Evaluator([m() for m in stubborn], 0)(act, 0)


# ------------------------------------------------------------------ every way to be broken, as a table


class Odd(gym.Env):
    """Four steps an episode, but for what it is told to do otherwise; `odd` replaces methods and spaces."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, **odd):
        self.t, self.returns = 0, {}
        for name, value in odd.items():
            if name in ("obs", "reward", "terminated", "truncated", "info", "result", "first"):
                self.returns[name] = value
            else:
                setattr(self, name, value)

    def value(self, name, usual):
        given = self.returns.get(name, usual)
        return given() if callable(given) else given

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.value("first", (np.zeros(2, np.float32), {}))

    def step(self, action):
        self.t += 1
        obs = self.value("obs", np.zeros(2, np.float32))
        ended = self.value("terminated", False), self.value("truncated", self.t >= 4)
        return self.value("result", (obs, self.value("reward", 0.0), *ended, self.value("info", {})))


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


class Unclear:
    def __bool__(self):
        raise TypeError("neither true nor false")


def raising(error):
    def raises(*_, **__):
        raise error

    return raises


def deep():
    return deep()


BOX = spaces.Box
ROUND = lambda shape: BOX(-1, 1, shape, np.float32)
REFUSED = {  # before the first step: what it is, and what is said
    "no environment at all": (lambda: 3, "expected a gymnasium.Env"),
    "None in its place": (lambda: None, "expected a gymnasium.Env"),
    "its class and not an instance": (lambda: Odd, "expected a gymnasium.Env"),
    "discrete actions": (lambda: Odd(action_space=spaces.Discrete(3)), "continuous actions"),
    "actions in several parts": (lambda: Odd(action_space=spaces.Dict(a=ROUND((1,)))), "continuous actions"),
    "whole numbers as actions": (lambda: Odd(action_space=BOX(0, 5, (1,), np.int32)), "continuous actions"),
    "actions without bounds": (lambda: Odd(action_space=BOX(-np.inf, np.inf, (1,))), "has no bounds"),
    "actions bounded on one side": (lambda: Odd(action_space=BOX(0, np.inf, (1,))), "has no bounds"),
    "a text as observation": (lambda: Odd(observation_space=spaces.Text(5)), "cannot be flattened"),
    "a sequence as observation": (lambda: Odd(observation_space=spaces.Sequence(ROUND((1,)))), "cannot be flattened"),
    "a graph as observation": (lambda: Odd(observation_space=spaces.Graph(ROUND((1,)), None)), "cannot be flattened"),
    "a float image": (lambda: Odd(observation_space=ROUND((8, 8, 3))), "must be uint8"),
    "channels first": (lambda: Odd(observation_space=BOX(0, 255, (3, 64, 64), np.uint8)), "channels last"),
    "stacked images": (lambda: Odd(observation_space=BOX(0, 255, (4, 64, 64, 3), np.uint8)), "single HxWxC"),
    "a float image beside a vector": (
        lambda: Odd(observation_space=spaces.Dict(a=ROUND((8, 8, 3)), b=ROUND((2,)))),
        "must be uint8",
    ),
    "reset returns the observation alone": (lambda: Odd(first=np.zeros(2, np.float32)), "reset"),
    "reset returns nothing": (lambda: Odd(first=lambda: None), "reset"),
    "reset raises": (lambda: Odd(reset=raising(OSError("no licence"))), "raised OSError: no licence"),
    "reset leaves": (lambda: Odd(reset=raising(SystemExit(3))), "raised SystemExit: 3"),
    "reset takes no seed": (lambda: Odd(reset=lambda: (np.zeros(2), {})), "raised TypeError"),
    "reset observes NaN": (lambda: Odd(first=(np.array([np.nan, 0], np.float32), {})), "observation is nan at entry 0"),
    "reset observes another shape": (lambda: Odd(first=(np.zeros(3, np.float32), {})), r"shape \(3,\)"),
    "reset observes None": (lambda: Odd(first=(None, {})), "observation has"),
    "its constructor raises": (raising(RuntimeError("no display")), "no display"),
}
STEPS = {  # at a step
    "an exception": ({"result": raising(ValueError("bad"))}, "raised ValueError: bad"),
    "an assertion": ({"result": raising(AssertionError())}, "raised AssertionError"),
    "an exception over several lines": ({"result": raising(ValueError("a\nb\n\nc"))}, "raised ValueError: a b c"),
    "an exception that cannot be printed": ({"result": raising(Unprintable())}, "raised Unprintable"),
    "a generator that is over": ({"result": raising(StopIteration())}, "raised StopIteration"),
    "no memory": ({"result": raising(MemoryError("gone"))}, "raised MemoryError"),
    "endless recursion": ({"result": deep}, "raised RecursionError"),
    "leaving the process": ({"result": raising(SystemExit("bye"))}, "raised SystemExit: bye"),
    "the four values of old Gym": ({"result": (np.zeros(2, np.float32), 0.0, False, {})}, "raised ValueError"),
    "nothing": ({"result": lambda: None}, "raised TypeError"),
    "a reward that is NaN": ({"reward": np.nan}, "reward is nan"),
    "a reward without bounds": ({"reward": -np.inf}, "reward is -inf"),
    "a reward beyond float32": ({"reward": 1e39}, "more than float32 holds"),
    "a reward that is None": ({"reward": lambda: None}, "not a number"),
    "a reward of two numbers": ({"reward": np.zeros(2)}, "not a number"),
    "a reward that is empty": ({"reward": np.zeros(0)}, "not a number"),
    "a reward that is text": ({"reward": "much"}, "not a number"),
    "a reward that is complex": ({"reward": 1j}, "not a number"),
    "an end that is neither true nor false": ({"terminated": Unclear}, "neither true nor false"),
    "an end that is an array": ({"terminated": np.array([True, False])}, "raised ValueError"),
    "an observation that is NaN": ({"obs": np.full(2, np.nan, np.float32)}, "observation is nan"),
    "an observation without bounds": ({"obs": np.array([0, np.inf], np.float32)}, "observation is inf at entry 1"),
    "an observation beyond float32": ({"obs": np.array([0, -1e39])}, "observation is -inf at entry 1"),
    "an observation of another shape": ({"obs": np.zeros((1, 2), np.float32)}, r"shape \(1, 2\)"),
    "an observation that is empty": ({"obs": np.zeros(0, np.float32)}, r"shape \(0,\)"),
    "an observation that is a number": ({"obs": 0.5}, r"shape \(\)"),
    "an observation that is None": ({"obs": lambda: None}, "observation has"),
    "an observation of text": ({"obs": np.array(["a", "b"])}, "dtype <U1"),
    "an observation of objects": ({"obs": np.array([None, {}])}, "dtype object"),
    "an observation that is complex": ({"obs": np.zeros(2, complex)}, "dtype complex128"),
    "an observation of ragged lists": ({"obs": [[1], [1, 2]]}, "raised ValueError"),
}
ACCEPTED = {  # unusual, but clear
    "a reward of one element": {"reward": np.array([1.0])},
    "a reward that is a whole number": {"reward": 1},
    "a reward that is true": {"reward": True},
    "an observation of float64": {"obs": np.zeros(2)},
    "an observation in a list": {"obs": [0.0, 0.0]},
    "an observation of whole numbers": {"obs": np.zeros(2, np.int64)},
    "an observation out of its bounds": {"obs": np.full(2, 7, np.float32)},
    "no information": {"info": lambda: None},
    "an end by a number": {"truncated": 1},
    "a close that raises": {"close": raising(OSError("stuck"))},
}


def test_there_are_many_ways_to_be_broken():
    assert len(REFUSED) + len(STEPS) >= 40


def one_sentence(error):
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_begin_is_refused_with_a_sentence(what):
    build, words = REFUSED[what]
    with pytest.raises((BadInput, RunFailed, RuntimeError), match=words) as error:
        make_pool(build, max_faults=5)
    one_sentence(error)


@pytest.mark.parametrize("what", STEPS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_what_breaks_at_a_step_is_a_fault_that_is_named_and_survived(what):
    odd, words = STEPS[what]
    with pytest.raises(RunFailed, match=words) as error:
        play(make_pool(lambda: Odd(**odd)), 1)
    one_sentence(error)
    made = []  # the first and third environment work, the second breaks
    pool = make_pool(lambda: made.append(1) or Odd(**(odd if len(made) == 2 else {})), num_envs=2, max_faults=3)
    _, steps = play(pool, 6)
    assert pool.faults == 1 and len(pool.told) == 1 and steps[0].valid.tolist() == [True, False]
    assert all(np.isfinite(step.next_obs).all() and np.isfinite(step.reward).all() for step in steps)


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_unusual_but_clear_is_accepted(what):
    pool = make_pool(lambda: Odd(**ACCEPTED[what]))
    _, steps = play(pool, 6)
    pool.close()
    assert pool.faults == 0 and len(pool.finished) >= 1 and all(step.valid.all() for step in steps)
