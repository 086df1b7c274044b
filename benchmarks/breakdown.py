"""The parts of an update besides its matrix products, timed alone and interleaved; writes breakdown.json.

    python benchmarks/breakdown.py

Parts have the update's own shapes (batch 256, 256-wide networks, Pendulum-v1): Adam and target copies of every weight,
the random numbers and densities of the policy's draws, activations forward and backward, sampling from the replay.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from maxinforl.core.actor_critic import polyak
from maxinforl.core.networks import apply_gradients
from maxinforl.experiments.speed import TimedAgent, best_times
from maxinforl.settings import Settings

SUBJECTS = {
    "sac": ("sac", "light"),
    "maxinfo-sac": ("maxinfo-sac", "paper"),
    "maxinfo-sac light": ("maxinfo-sac", "light"),
}


def parts(subject: TimedAgent) -> dict[str, Any]:
    """Name -> a call that takes as long as that part of an update."""
    agent, state, batch_size = subject.trainer.strategy, subject.trainer.state, 256
    base, learner, spec = agent.base, state.agent.learner, subject.trainer.program.spec
    key = jax.random.key(0)

    def descents(s, grads):
        value = (s.params.encoder, s.params.critic)
        critic = apply_gradients(base.optimizer, (value[0], grads.critic), s.value_opt, value)
        return (
            critic,
            apply_gradients(base.optimizer, grads.actor, s.actor_opt, s.params.actor),
            polyak(s.target, grads, 0.005),
        )

    def draws(key, out):
        keys = jax.random.split(key, 3)
        return [base.policy.sample(out, k, 0.0) for k in keys[: 3 if hasattr(agent, "intrinsic") else 2]]

    width = base.hidden[0]
    hidden = jnp.ones(
        (5 * 2 * base.critics, batch_size, width)
    )  # two layers of: target, loss, actor's critics, 2 policies
    relu = lambda x: (jax.nn.relu(x), jnp.where(x > 0, x, 0.0))
    grads = type(learner.target)(learner.params.critic, learner.params.actor)
    calls = {
        "adam and slow copies": (descents, learner, grads),
        "random numbers and densities": (draws, key, jnp.ones((batch_size, 2 * spec.action))),
        "activations": (relu, hidden),
        "replay": (lambda r, k: r.sample(k, (1, batch_size), 0.99, 1), state.replay, key),
    }
    if hasattr(agent, "intrinsic"):
        model = state.agent.model
        calls["ensemble's adam"] = (
            lambda m, g: apply_gradients(agent.intrinsic.optimizer, g, m.opt, m.members),
            model,
            model.members,
        )
    return {name: ready(*call) for name, call in calls.items()}


def ready(function: Any, *args: Any) -> Any:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*args))
    return lambda: jax.block_until_ready(compiled(*args))


def main() -> None:
    results = {}
    for title, (algo, uncertainty) in SUBJECTS.items():
        subject = TimedAgent(Settings(algo=algo, uncertainty=uncertainty, env="Pendulum-v1"))
        calls = {"update": subject.update, "products": subject.floor, **parts(subject)}
        results[title] = {name: round(ms, 3) for name, ms in best_times(calls, 10, 0.2).items()}
        print(title, results[title], flush=True)
    Path(__file__).with_name("breakdown.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
