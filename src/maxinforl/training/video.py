"""Evaluation episodes as MP4, for any environment that renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from maxinforl import files
from maxinforl.envs.pixels import picture
from maxinforl.errors import missing_extra


class Video:
    """Collects the frames of one episode and writes them."""

    def __init__(self, fps: float):
        try:
            import imageio.v3 as imageio
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise missing_extra("video", "--video") from error
        self.imageio, self.fps, self.frames = imageio, fps, []

    def watch(self, env: Any) -> None:
        frame = picture(env)
        height, width = (n - n % 2 for n in frame.shape[:2])  # the codec takes even sizes only
        self.frames.append(frame[:height, :width])

    def write(self, path: Path) -> None:
        with files.writing(path):  # the codec needs room for a temporary file
            film = self.imageio.imwrite(
                "<bytes>", np.stack(self.frames), extension=".mp4", fps=self.fps, macro_block_size=1
            )
        files.make_directory(path.parent)
        files.write_atomic(path, film)
