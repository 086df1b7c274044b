"""Tasks as pure functions of JAX arrays, and the Gymnasium environment around one."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from maxinforl.envs.draw import Rod, draw
from maxinforl.envs.pendulum import pendulum_rods
from maxinforl.errors import unknown

State = Any


class Task(Protocol):
    """Pure functions that jit, vmap and scan; a task is hashable, and its state is a pytree of arrays.

    `step` takes actions in [-1, 1] (native units divided by `action_bound`) and ignores the time limit, which truncates
    and is counted by the caller. A task may state `dt`, the seconds that a step lasts.
    """

    @property
    def summary(self) -> str: ...
    @property
    def observation_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...
    @property
    def action_bound(self) -> float: ...
    @property
    def time_limit(self) -> int: ...

    def reset(self, key: Array) -> State: ...
    def observe(self, state: State) -> Array: ...
    def step(self, state: State, action: Array) -> tuple[State, Array, Array]: ...
    def rods(self, state: State) -> list[Rod]: ...


@dataclass(frozen=True)
class HangingPendulum:
    """A rod (mass 1, length 1, g 10) with a torque u = 2 action at its pivot; state (angle from upright, speed).

    speed' = clip(speed + 0.05 (15 sin(angle) + 3 u), -8, 8), angle' = angle + 0.05 speed', and the reward is
    -(angle^2 + 0.1 speed^2 + 0.001 u^2) of the state before the step with the angle in [-pi, pi). It starts at
    (pi, 0) + U(-0.1, 0.1)^2.
    """

    summary = "pendulum-hanging in pure JAX"
    dt = 0.05
    observation_size = 3
    action_size = 1
    action_bound = 2.0
    time_limit = 200

    def reset(self, key: Array) -> Array:
        return jnp.array([jnp.pi, 0.0]) + jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1)

    def observe(self, state: Array) -> Array:
        angle, speed = state
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])

    def step(self, state: Array, action: Array) -> tuple[Array, Array, Array]:
        angle, speed = state
        torque = 2 * jnp.clip(action[0], -1, 1)
        wrapped = jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi
        reward = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * torque), -8, 8)
        return jnp.stack([angle + 0.05 * speed, speed]), reward, jnp.array(False)

    def rods(self, state: Array) -> list[Rod]:
        return pendulum_rods(float(state[0]))


@dataclass(frozen=True)
class MountainCar:
    """MountainCarContinuous-v0; state (position, speed), both observed.

    speed' = clip(speed + 0.0015 action - 0.0025 cos(3 position), -0.07, 0.07), position' = clip(position + speed',
    -1.2, 0.6), and the left wall stops the car. Reaching 0.45 with a speed that is not negative terminates with 100;
    every step costs 0.1 action^2. It starts at rest at U(-0.6, -0.4).
    """

    summary = "MountainCarContinuous-v0 in pure JAX"
    observation_size = 2
    action_size = 1
    action_bound = 1.0
    time_limit = 999

    def reset(self, key: Array) -> Array:
        return jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.zeros(())])

    def observe(self, state: Array) -> Array:
        return state

    def step(self, state: Array, action: Array) -> tuple[Array, Array, Array]:
        position, speed = state
        force = jnp.clip(action[0], -1, 1)
        speed = jnp.clip(speed + 0.0015 * force - 0.0025 * jnp.cos(3 * position), -0.07, 0.07)
        position = jnp.clip(position + speed, -1.2, 0.6)
        speed = jnp.where((position <= -1.2) & (speed < 0), 0.0, speed)
        terminated = (position >= 0.45) & (speed >= 0)
        return jnp.stack([position, speed]), 100.0 * terminated - 0.1 * force**2, terminated

    def rods(self, state: Array) -> list[Rod]:
        *ground, car = [
            (x / 0.9 + 1 / 3, np.sin(3 * x) * 0.5 - 0.2) for x in (*np.linspace(-1.2, 0.6, 25), float(state[0]))
        ]
        hill = [Rod(a, b, 0.02, (0, 0, 0)) for a, b in pairwise(ground)]
        return [*hill, Rod(car, car, 0.1, (204, 77, 77))]


@dataclass(frozen=True)
class CartpoleSwingupSparse:
    """dm_control's cartpole swingup_sparse; state (position, angle from upright, their speeds).

    A cart (mass 1, force F = 10 action, damping 5e-4) carries a pole (a capsule of mass m = 0.1, length 1 and radius
    0.045 with its centre at l = 0.5, damping 2e-6):

        1.1 x'' + m l cos(a) a'' = F - 5e-4 x' + m l sin(a) a'^2
        m l cos(a) x'' + (I + m l^2) a'' = m g l sin(a) - 2e-6 a'

    integrated by RK4 with a step of 0.01 s, one step per action. Beyond +-1.8 the rail pushes back with MuJoCo's soft
    constraint (time constant 0.08, damping ratio 1). The reward is 1 where |x| <= 0.25 and cos(a) >= 0.995, else 0. It
    starts at rest hanging in the middle, with 0.01 N(0, 1) added to all four. Observed: x, cos a, sin a, x', a'.
    """

    summary = "dm_control's cartpole swingup_sparse in pure JAX"
    dt = 0.01
    observation_size = 5
    action_size = 1
    action_bound = 1.0
    time_limit = 1000

    def reset(self, key: Array) -> Array:
        return jnp.array([0, jnp.pi, 0, 0]) + 0.01 * jax.random.normal(key, (4,))

    def observe(self, state: Array) -> Array:
        x, angle, speed, spin = state
        return jnp.stack([x, jnp.cos(angle), jnp.sin(angle), speed, spin])

    def step(self, state: Array, action: Array) -> tuple[Array, Array, Array]:
        force, h = 10 * jnp.clip(action[0], -1, 1), 0.01
        k1 = cartpole_flow(state, force)
        k2 = cartpole_flow(state + h / 2 * k1, force)
        k3 = cartpole_flow(state + h / 2 * k2, force)
        k4 = cartpole_flow(state + h * k3, force)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        reward = (jnp.abs(state[0]) <= 0.25) & (jnp.cos(state[1]) >= 0.995)
        return state, reward.astype(jnp.float32), jnp.array(False)

    def rods(self, state: Array) -> list[Rod]:
        x, angle = (float(s) for s in state[:2])
        cart, rail = x / 2.2, Rod((-0.82, 0), (0.82, 0), 0.01, (120, 120, 120))
        tip = (cart + 0.45 * np.sin(angle), 0.45 * np.cos(angle))
        return [
            rail,
            Rod((cart - 0.06, 0), (cart + 0.06, 0), 0.05, (0, 0, 0)),
            Rod((cart, 0), tip, 0.03, (204, 77, 77)),
        ]


def capsule_inertia(mass: float, length: float, radius: float) -> float:
    """About an axis across the middle: a cylinder and two half spheres of one density."""
    caps = mass * 4 * radius / (4 * radius + 3 * length)
    cylinder = (mass - caps) * (3 * radius**2 + length**2) / 12
    return cylinder + caps * (0.4 * radius**2 + length * (3 * radius + 2 * length) / 8)


CART, POLE, ARM, GRAVITY = 1.0, 0.1, 0.5, 9.81
INERTIA = capsule_inertia(POLE, 1.0, 0.045) + POLE * ARM**2
RAIL_TIME, RAIL_END = 0.08, 1.8
# how far a unit force accelerates the cart with the pole upright: MuJoCo scales the softness of the rail's end by it
LIGHTNESS = INERTIA / ((CART + POLE) * INERTIA - (POLE * ARM) ** 2)


def cartpole_flow(state: Array, force: Array) -> Array:
    """The time derivative of the state."""
    x, angle, speed, spin = state
    coupling = POLE * ARM * jnp.cos(angle)
    push = force - 5e-4 * speed + POLE * ARM * jnp.sin(angle) * spin**2
    twist = POLE * GRAVITY * ARM * jnp.sin(angle) - 2e-6 * spin
    determinant = (CART + POLE) * INERTIA - coupling**2
    free = (INERTIA * push - coupling * twist) / determinant
    push = push + rail_force(x, speed, free, INERTIA / determinant)
    acceleration = (INERTIA * push - coupling * twist) / determinant
    return jnp.stack([speed, spin, acceleration, ((CART + POLE) * twist - coupling * push) / determinant])


def rail_force(x: Array, speed: Array, free: Array, lightness: Array) -> Array:
    """MuJoCo's force of a joint limit: brings the acceleration towards that of a critically damped spring."""
    side = -jnp.sign(x)
    depth = jnp.minimum(RAIL_END - jnp.abs(x), 0)
    share = jnp.minimum(-depth / 0.001, 1)
    impedance = 0.9 + 0.05 * jnp.where(share < 0.5, 2 * share**2, 1 - 2 * (1 - share) ** 2)
    stiffness, damping = 1 / (0.95 * RAIL_TIME) ** 2, 2 / (0.95 * RAIL_TIME)
    wanted = -damping * side * speed - stiffness * impedance * depth
    force = (wanted - side * free) / (lightness + LIGHTNESS * (1 - impedance) / impedance)
    return jnp.where(depth < 0, side * jnp.maximum(force, 0), 0.0)


TASKS: dict[str, Task] = {
    "pendulum-hanging": HangingPendulum(),
    "mountain-car": MountainCar(),
    "cartpole-swingup_sparse": CartpoleSwingupSparse(),
}


def task(name: str) -> Task:
    """The pure task that a `jax/` or `brax/` name stands for."""
    if name.startswith("brax/"):
        from maxinforl.envs.brax_task import BraxTask

        return BraxTask(name.removeprefix("brax/"))
    if (short := name.removeprefix("jax/")) not in TASKS:
        raise unknown("environment", name, (f"jax/{known}" for known in TASKS))
    return TASKS[short]


class JaxEnv(gym.Env):
    """A pure task stepped from the host; `reset(seed=s)` draws from `jax.random.key(s)`."""

    def __init__(self, task: Task, render_mode: str | None = None, size: int = 256):
        self.task, self.render_mode, self.size = task, render_mode, size
        self.dt = getattr(task, "dt", None)  # seconds per step, where the task has a clock
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self.dt) if self.dt else 30}
        bound = task.action_bound
        self.action_space = spaces.Box(-bound, bound, (task.action_size,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (task.observation_size,), np.float32)
        self._begin, self._advance = jax.jit(self._first), jax.jit(self._next)
        self._key = jax.random.key(0)

    def _first(self, key: Array) -> tuple[State, Array]:
        state = self.task.reset(key)
        return state, self.task.observe(state)

    def _next(self, state: State, action: Array) -> tuple[State, Array]:
        state, reward, terminated = self.task.step(state, action / self.task.action_bound)
        # one array to fetch: three would take twice as long
        return state, jnp.concatenate([self.task.observe(state), jnp.stack([reward, terminated])])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._key = jax.random.key(seed) if seed is not None else jax.random.split(self._key, 1)[0]
        self.state, obs = self._begin(self._key)
        self.elapsed = 0
        return np.array(obs), {}

    def step(self, action):
        self.state, packed = self._advance(self.state, np.asarray(action, np.float32))
        packed = np.array(packed)
        self.elapsed += 1
        terminated, over = bool(packed[-1]), self.elapsed >= self.task.time_limit
        return packed[:-2], float(packed[-2]), terminated, over and not terminated, {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return draw(self.size, self.task.rods(self.state))
