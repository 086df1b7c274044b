"""Environments nobody here wrote, each from training to a robot: is anything in the way?

    python benchmarks/own_tasks.py              # all of them: benchmarks/own_tasks.json and the table in the docs
    python benchmarks/own_tasks.py two-cameras  # some of them, anew

Each trains some steps, acts, is evaluated by Stable-Baselines3's `evaluate_policy` (or, where that is not installed, by
the same loop in examples/evaluate_like_sb3.py), saved, loaded, killed with SIGKILL and resumed, and exported to NumPy
and ONNX. A run that was killed must end with the same numbers, bit for bit.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

import maxinforl
from maxinforl import deploy
from maxinforl.deploy import bundle

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "own_tasks.json", ROOT / "docs" / "environments.md"
BEGIN, END = "<!-- measured: python benchmarks/own_tasks.py -->", "<!-- end of measured -->"
LENGTH = 25  # steps of an episode


@dataclass(frozen=True)
class Task:
    observation: str
    make: Callable[..., Any]
    algo: str = "sac"
    options: dict[str, Any] = field(default_factory=dict)


def registered(name: str, **options: Any) -> gym.Env:
    if not name[0].isupper():  # Fetch and mazes are registered by a package of their own
        package, name = name.split(":")
        gym.register_envs(__import__(package))
    return gym.make(name, max_episode_steps=LENGTH, **options)


def rendered(name: str, cameras: dict[str, Callable[[np.ndarray], np.ndarray]]) -> gym.Env:
    """A task of vectors with pictures of itself beside them, by Gymnasium's own wrapper."""
    env = wrappers.AddRenderObservation(registered(name, render_mode="rgb_array"), False, "frame", "state")
    state = env.observation_space["state"]  # type: ignore[index]
    picture = lambda obs: {key: np.ascontiguousarray(view(obs["frame"])) for key, view in cameras.items()}
    shapes = picture({"frame": np.zeros(env.observation_space["frame"].shape, np.uint8)})  # type: ignore[index]
    images = {key: spaces.Box(0, 255, image.shape, np.uint8) for key, image in shapes.items()}
    seen = lambda obs: {"state": obs["state"], **picture(obs)}
    return wrappers.TransformObservation(env, seen, spaces.Dict({"state": state, **images}))


far, near = (lambda frame: frame[10::20, 10::20]), (lambda frame: frame[130:370:10, 130:370:10])
TASKS = {
    "point-maze": Task("Dict with a goal", lambda: registered("gymnasium_robotics:PointMaze_UMaze-v3"), "maxinfo-sac"),
    "ant-maze": Task(
        "Dict with a goal, one part for critics alone",
        lambda: registered("gymnasium_robotics:AntMaze_UMaze-v5"),
        options={"critic_only": "achieved_goal"},
    ),
    "fetch-reach": Task("Dict with a goal", lambda: registered("gymnasium_robotics:FetchReach-v4"), "redq"),
    "double-pendulum": Task("vector", lambda: registered("InvertedDoublePendulum-v5"), "maxinfo-simba"),
    "adroit-door": Task("vector in float64", lambda: registered("gymnasium_robotics:AdroitHandDoor-v1"), "crossq"),
    "lunar-lander": Task("vector", lambda: registered("LunarLander-v3", continuous=True), "maxinfo-sac"),
    "bipedal-walker": Task("vector", lambda: registered("BipedalWalker-v3"), "ddpg"),
    "car-racing": Task("image; actions from 0 to 1 and -1 to 1", lambda: registered("CarRacing-v3"), "drq"),
    "half-cheetah": Task("vector", lambda: registered("HalfCheetah-v5"), "eipo-sac"),
    "humanoid": Task("vector of 348", lambda: registered("Humanoid-v5"), "bro"),
    "camera-and-joints": Task(
        "Dict of an image and a vector", lambda: rendered("Pendulum-v1", {"camera": far}), "maxinfo-drq"
    ),
    "two-cameras": Task(
        "Dict of two images and a vector", lambda: rendered("Pendulum-v1", {"far": far, "near": near}), "maxinfo-drqv2"
    ),
    "choices": Task(
        "MultiDiscrete",
        lambda: wrappers.DiscretizeObservation(registered("MountainCarContinuous-v0"), 8, multidiscrete=True),
    ),
    "lopsided-limits": Task(
        "vector; actions from -3 to 0.5",
        lambda: wrappers.RescaleAction(registered("MountainCarContinuous-v0"), np.float32(-3), np.float32(0.5)),
        "maxinfo-sac",
    ),
    "vector-environment": Task(
        "vector, two environments at once",
        lambda: gym.make_vec(
            "Pendulum-v1",
            2,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            max_episode_steps=LENGTH,
        ),
        "maxinfo-sac",
    ),
}
IN_TESTS = ("point-maze", "two-cameras", "choices", "vector-environment")  # of one kind each, and quick


def source(task: Task) -> Any:
    """What an agent is given: a function that makes environments, or a vector environment itself."""
    env = task.make()
    return env if isinstance(env, VectorEnv) else task.make


def train(task: Task, out: Path, steps: int, callback: Any = None) -> maxinforl.Agent:
    small = {"base.hidden": (16, 16)} if not task.algo.endswith(("simba", "crossq", "bro")) else {}
    options = {"batch_size": 16, "learning_starts": 20, "eval_episodes": 0, "log_every": steps, "frame_stack": 2}
    options |= {"save_every": steps // 4, "steps": steps} | task.options
    return maxinforl.make(task.algo, source(task), set=small, **options).learn(steps, out=out, callback=callback)


class KilledAt:
    def __init__(self, step: int):
        self.step = step

    def on_step(self, run: Any) -> None:
        if run.step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def own_observations(env: Any) -> Iterator[Any]:
    """Of an episode of random actions, as the environment gives them, one at a time."""
    obs, _ = env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(8):
        yield from iterate(env.observation_space, obs) if isinstance(env, VectorEnv) else [obs]
        obs, *_ = env.step(env.action_space.sample())


def act(agent: maxinforl.Agent, env: Any) -> list[tuple[Any, np.ndarray]]:
    """Actions within the limits on the environment's own observations, with frames stacked as evaluations do."""
    found, state, space = [], None, getattr(env, "single_action_space", env.action_space)
    for i, obs in enumerate(own_observations(env)):
        action, state = agent.predict(obs, state, np.array([i == 0]), deterministic=True)
        assert space.contains(action), f"{action} is not in {space}"
        found.append((obs, action))
    return found


def evaluation(agent: maxinforl.Agent, env: Any) -> float:
    try:
        from stable_baselines3.common.evaluation import evaluate_policy
    except ImportError:
        evaluate_policy = runpy.run_path(str(ROOT / "examples" / "evaluate_like_sb3.py"))["evaluate_policy"]
    return float(evaluate_policy(agent, env, n_eval_episodes=2)[0])


def arrays(agent: maxinforl.Agent, folder: Path) -> dict[str, np.ndarray]:
    agent.save(folder)
    return maxinforl.files.load_arrays(folder / "agent.safetensors")[0]


def resumed(name: str, folder: Path, whole: dict[str, np.ndarray], steps: int) -> bool:
    """Whether a run that is killed between two checkpoints and resumed ends as the whole one did."""
    task, out = TASKS[name], folder / "killed"
    code = subprocess.run([sys.executable, __file__, "--killed", name, str(out), str(steps)]).returncode
    assert code == -signal.SIGKILL, f"the run ended with {code} and was not killed"
    agent = maxinforl.resume(out, env=source(task))
    found = arrays(agent, folder / "resumed")
    return found.keys() == whole.keys() and all(np.array_equal(found[key], whole[key]) for key in whole)


def exported(agent: maxinforl.Agent, seen: list, to: str, folder: Path) -> float:
    """The largest difference of an action between agent and bundle, as a share of half the range."""
    deploy.export(agent, to, folder)  # refuses what differs on random observations
    policy, half, worst = bundle.opened(folder, to), (agent.action_space.high - agent.action_space.low) / 2, 0.0
    for i, (obs, action) in enumerate(seen):
        if agent.stack > 1 and i:
            continue  # the first frame stands for the stack of an episode that begins; `see` is NumPy's alone
        if agent.stack > 1:
            action = agent.predict(first := repeated(agent, obs), deterministic=True)[0]
            obs = first
        worst = max(worst, float(np.max(np.abs(policy(obs) - action) / half)))
    return worst


def repeated(agent: maxinforl.Agent, obs: Any) -> Any:
    """An observation whose images are stacks of one frame."""
    if isinstance(obs, dict):
        return {key: repeated(agent, value) for key, value in obs.items()}
    return np.concatenate([obs] * agent.stack, -1) if np.asarray(obs).dtype == np.uint8 else obs


def check(name: str, folder: Path, steps: int = 200) -> dict[str, Any]:
    """All that a task must pass; a failure raises, or is a False in the result."""
    task, began = TASKS[name], time.perf_counter()
    agent = train(task, folder / "whole", steps)
    env = task.make()
    seen = act(agent, env)
    lane = env if not isinstance(env, VectorEnv) else gym.make("Pendulum-v1", max_episode_steps=LENGTH)
    result = {"algo": task.algo, "observation": task.observation, "return": round(evaluation(agent, lane), 3)}
    whole = arrays(agent, folder / "saved")
    again = act(maxinforl.load(folder / "saved", env=source(task)), task.make())
    same = all(np.array_equal(a, b) for (_, a), (_, b) in zip(seen, again, strict=True))
    result |= {"loaded": same, "resumed": resumed(name, folder, whole, steps)}
    result |= {to: exported(agent, seen, to, folder / to) for to in ("numpy", "onnx")}
    return result | {"steps": steps, "seconds": round(time.perf_counter() - began, 1)}


def attempted(name: str) -> dict[str, Any]:
    """The result, or what an environment says that does not start here."""
    try:
        env = TASKS[name].make()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip(": ")
        return {"observation": TASKS[name].observation, "algo": TASKS[name].algo, "refused": said}
    env.close()
    with tempfile.TemporaryDirectory() as folder:
        return check(name, Path(folder))


def row(name: str, r: dict[str, Any]) -> str:
    told = lambda yes: "equal" if yes else "**differs**"
    begin = f"| {name} | {r['observation']} | `{r['algo']}` |"
    if "refused" in r:
        return f"{begin} its constructor raises {r['refused'].partition(':')[0]} | |"
    return f"{begin} {told(r['loaded'])}, {told(r['resumed'])} | {r['numpy']:.0e}, {r['onnx']:.0e} |"


def table(results: dict[str, Any]) -> str:
    """What the docs show of the results."""
    head = [
        "| task | observation | agent | loaded, resumed after SIGKILL | NumPy, ONNX off by |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row(name, r) for name, r in results.items()), ""])


def filled(page: str) -> str:
    """The page with its table made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(json.loads(RESULTS.read_text()))}{END}{rest.split(END)[1]}"


def main(*names: str) -> None:
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text()) if names and RESULTS.exists() else {}
    for name in names or TASKS:
        results[name] = attempted(name)
        print(name, json.dumps(results[name]), flush=True)
        ordered = {known: results[known] for known in TASKS if known in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--killed"]:
        name, out, steps = sys.argv[2:]
        train(TASKS[name], Path(out), int(steps), KilledAt(int(steps) * 5 // 8))
    else:
        main(*sys.argv[1:])
