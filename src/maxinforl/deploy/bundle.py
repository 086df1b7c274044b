"""A bundle: the directory that `maxinforl export` writes, compared with the agent before it may be used."""

from __future__ import annotations

import io
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxinforl import files, runner
from maxinforl.agent import Agent
from maxinforl.deploy.contract import contract
from maxinforl.deploy.policy_weights import strides_of, weights_of
from maxinforl.errors import BadInput, RunFailed, unknown

FORMATS = ("numpy", "onnx")
TOLERANCE = 1e-5  # of an action that spans [-1, 1]
Act = Callable[[Any], np.ndarray]


class Latency(NamedTuple):
    """Milliseconds that one action takes here."""

    median: float
    p99: float


def export(agent: Agent, to: str, out: str | Path) -> Latency:
    """Writes the policy of an agent as a bundle.

    Args:
        agent: the agent.
        to: "numpy" or "onnx".
        out: a directory that does not exist or is empty.

    Returns how long one action takes on this machine. RunFailed if an action of the bundle differs from
    `predict(deterministic=True)` by more than 1e-5 of half the action's range.

    >>> export(maxinforl.load("runs/five/seed-0"), "numpy", "bundle")
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    out = Path(out).absolute()  # an environment may change the current one
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out {out} exists already: name a directory that does not")
    contents = as_numpy(agent) if to == "numpy" else as_onnx(agent)
    files.make_directory(out)
    for name, data in contents.items():
        files.write_atomic(out / name, data)
    files.write_json(
        out / "contract.json", contract(agent, {name: sha256(data).hexdigest() for name, data in contents.items()})
    )
    act = opened(out, to)
    compare(agent, act, out)
    return Latency(*runner.latency(act, first(examples(agent, 1)), 20 if strides_of(agent) else 1000))


def as_numpy(agent: Agent) -> dict[str, bytes]:
    """Weights, and the source of `runner.py`."""
    buffer = io.BytesIO()
    np.savez(buffer, **weights_of(agent))  # type: ignore[arg-type]
    return {"weights.npz": buffer.getvalue(), "policy.py": Path(runner.__file__).read_bytes()}


def as_onnx(agent: Agent) -> dict[str, bytes]:
    from maxinforl.deploy.graph import model

    return {"policy.onnx": model(agent)}


def opened(bundle: Path, to: str) -> Act:
    """The bundle as a function of an observation."""
    if to == "numpy":
        return runner.Policy(bundle)
    from maxinforl.deploy.graph import session

    contract = runner.read_contract(bundle / "contract.json")["observation"]
    return session(bundle / "policy.onnx", contract.get("parts", []), contract["stack"])


def examples(agent: Agent, count: int) -> Any:
    """Random observations to compare on: the environment's own where there are images and vectors."""
    generator, spec = np.random.default_rng(0), agent.spec.seen
    if spec.layout:
        parts = [part.table() for part in agent.spaces.seen]
        return runner.nested(parts, [random_part(part, count, agent.stack, generator) for part in parts])
    if spec.pixels:
        return generator.integers(0, 256, (count, *spec.obs), np.uint8)
    return generator.normal(0, 2, (count, *spec.obs)).astype(np.float32)


def random_part(part: dict[str, Any], count: int, stack: int, generator: np.random.Generator) -> np.ndarray:
    like = runner.zeros_of(part, stack)
    if part.get("image"):
        return generator.integers(0, 256, (count, *like.shape), np.uint8)
    if part["sizes"]:
        return like + generator.integers(0, np.reshape(part["sizes"], like.shape), (count, *like.shape))
    return generator.normal(0, 2, (count, *like.shape)).astype(np.float32)


def first(observations: Any) -> Any:
    """The first of a batch."""
    return {k: first(v) for k, v in observations.items()} if isinstance(observations, dict) else observations[0]


def compare(agent: Agent, act: Act, out: Path) -> None:
    """RunFailed if a bundle acts differently from the agent."""
    observations = examples(agent, 4 if agent.spec.pixels else 256)
    expected, _ = agent.predict(observations, deterministic=True)
    half = (agent.action_space.high - agent.action_space.low) / 2
    worst = max(
        float(np.max(np.abs(act(observations) - expected) / half)),
        float(np.max(np.abs(act(first(observations)) - expected[0]) / half)),
    )
    if not worst <= TOLERANCE:
        files.remove(out / "contract.json")
        raise RunFailed(f"the exported policy differs from predict by {worst:.1e} of an action: do not use {out}")
