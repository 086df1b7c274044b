"""Pixel-based training: the hanging pendulum from images.

    python examples/pixels.py [STEPS] [IMAGE_SIZE]

Images of 84 x 84 are usual; smaller ones train faster if the task is visible in them. An update takes about half a
second on two cores, so run this on a GPU or overnight.
"""

import sys

import maxinforl


def main(steps: int = 20_000, size: int = 48) -> None:
    agent = maxinforl.make(
        "maxinfo-drq",
        "pixels/pendulum-hanging",
        image_size=size,
        frame_stack=3,  # velocities are visible only across frames
        batch_size=32,
        eval_episodes=1,
    )
    print(f"observations of shape {agent.spec.obs}")
    agent.learn(steps, eval_every=max(1, steps // 2), progress=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
