"""A trained policy on a robot: only NumPy and an exported bundle.

maxinforl export runs/x --to numpy --out bundle     # where you trained
python examples/robot.py bundle [STEPS]             # on the robot: no JAX, no maxinforl
"""

import sys
import time

import numpy as np


class Robot:
    """Placeholder for your hardware: replace `read` and `write`."""

    def __init__(self, size: int):
        self.state = np.zeros(size, np.float32)

    def read(self) -> np.ndarray:
        """Sensors, in the order of contract.json."""
        return self.state

    def write(self, action: np.ndarray) -> None:
        """Motors, within the limits of contract.json."""
        self.state = np.tanh(self.state + 0.1 * float(action[0])).astype(np.float32)


def main(bundle: str, steps: int = 100) -> None:
    sys.path.insert(0, bundle)
    from policy import Policy  # the file that `maxinforl export` wrote

    policy = Policy(bundle)  # raises ValueError if a file was changed
    contract = policy.contract
    if contract["control_rate_hz"] is None:
        sys.exit("the contract has no control rate: give the environment a `dt` (seconds per step) and export again")
    period = 1 / contract["control_rate_hz"]
    robot = Robot(policy.shape[0])
    late = 0
    for _ in range(steps):
        deadline = time.perf_counter() + period
        action = policy(robot.read())  # raises ValueError on a wrong shape or a non-finite number
        robot.write(action)
        spare = deadline - time.perf_counter()
        late += spare < 0
        time.sleep(max(0.0, spare))
    print(f"{steps} steps at {1 / period:.0f} Hz, {late} late; last action {action.tolist()}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
