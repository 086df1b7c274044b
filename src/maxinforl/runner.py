"""Acts as a trained policy does. Needs NumPy and the two files beside it, weights.npz and contract.json.

    from policy import Policy

    policy = Policy("bundle")
    action = policy(observation)  # in the units of contract.json; a batch of observations works too

An observation is the environment's own (a Dict, a Tuple or discrete too), or the vector of contract.json.
`python policy.py` checks the files and says how long an action takes on this machine. For a policy that reads stacked
images, `policy.see(frame, first=True)` keeps the stack: pass each new frame, with `first` at the start of an episode.
"""

import hashlib
import io
import json
import os
import stat
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

FORMAT = 2
FILES = {"weights.npz", "policy.py"}
MOST_BYTES = 1 << 30


class Policy:
    """The deterministic policy of a bundle directory; raises ValueError when its files were changed."""

    def __init__(self, directory: str | Path = Path(__file__).parent):
        folder = Path(directory)
        try:
            self._open(folder)
        except (KeyError, TypeError, AttributeError, IndexError, EOFError, zipfile.BadZipFile, RecursionError) as error:
            raise ValueError(f"{folder} is not a whole bundle ({error!r}): export the policy again") from error

    def _open(self, folder: Path) -> None:
        self.contract = read_contract(folder / "contract.json")
        if set(self.contract["sha256"]) != FILES:
            raise ValueError(f"{folder / 'contract.json'} does not seal just {sorted(FILES)}: export the policy again")
        sealed = {name: read_regular(folder / name) for name in FILES}
        for name, seal in self.contract["sha256"].items():
            if hashlib.sha256(sealed[name]).hexdigest() != seal:
                raise ValueError(f"{name} is not the file that contract.json describes: export the policy again")
        with np.load(io.BytesIO(sealed["weights.npz"]), allow_pickle=False) as arrays:
            self.weights = {name: arrays[name] for name in arrays.files}
        observation, action = self.contract["observation"], self.contract["action"]
        self.shape, self.dtype = tuple(observation["shape"]), np.dtype(observation["dtype"])
        self.low, self.high = (np.array(action[side], np.float32) for side in ("low", "high"))
        self.centre, self.half = self.high / 2 + self.low / 2, self.high / 2 - self.low / 2
        self.strides, self.parts, self.stack = (
            observation["strides"],
            observation.get("parts", []),
            observation["stack"],
        )
        self.many = are_many(self.parts)
        self.network = with_arrays(self.contract["network"], self.weights)
        self.frames = None

    def __call__(self, observation) -> np.ndarray:
        """The action for one observation or for each of a batch."""
        return self.act(*self.parted(observation)) if self.many else self.act([], self.checked(observation))

    def act(self, images: list, x: np.ndarray) -> np.ndarray:
        """The action for images and the vector beside them, or for one of the two alone."""
        if self.strides and not images:
            images, x = [x], np.zeros((*x.shape[:-3], 0), np.float32)
        latents = [self.latent(image, f"image.{i}." if self.many else "") for i, image in enumerate(images)]
        x = np.concatenate([*latents, x], -1)
        kept = []
        for name, arrays in self.network:
            x = operate(name, arrays, x, kept)
        action = self.centre + self.half * np.tanh(x)
        return np.minimum(np.maximum(action, self.low), self.high)

    def checked(self, observation) -> np.ndarray:
        """The observation in the policy's type; one of another shape, or one that is not finite, is refused."""
        x = np.asarray(gathered(observation, self.parts, self.shape))
        if x.shape[-len(self.shape) :] != self.shape or x.ndim > len(self.shape) + 1:
            raise ValueError(f"an observation has shape {self.shape}, or is a batch of them, not {x.shape}")
        if self.strides:
            if x.dtype != np.uint8:
                raise ValueError(f"images are uint8 from 0 to 255, and these are {x.dtype}")
            return x
        x = np.asarray(x, self.dtype)
        if not np.isfinite(x).all():
            raise ValueError("the observation holds a number that is not finite: look at the sensor that gave it")
        return x

    def parted(self, observation, stack: int | None = None) -> tuple[list, np.ndarray]:
        """Images, with the frames before them, and the vector of an observation; what is not finite is refused."""
        images, vector = parted(observation, self.parts, self.stack if stack is None else stack)
        if not np.isfinite(vector).all():
            raise ValueError("the observation holds a number that is not finite: look at the sensor that gave it")
        return images, vector

    def zeros(self):
        """An observation of zeros."""
        if not self.many:
            return np.zeros(self.shape, self.dtype)
        return nested(self.parts, [zeros_of(part, self.stack) for part in self.parts])

    def latent(self, images: np.ndarray, of: str = "") -> np.ndarray:
        """One image or a batch of them through its convolutions and its projection."""
        x, weights = images.reshape(-1, *images.shape[-3:]).astype(np.float32) / np.float32(255), self.weights
        for i, stride in enumerate(self.strides):
            x = np.maximum(convolve(x, weights[f"{of}conv.{i}.weight"], stride) + weights[f"{of}conv.{i}.bias"], 0)
        x = x.reshape(len(x), -1) @ weights[f"{of}trunk.weight"] + weights[f"{of}trunk.bias"]
        x = np.tanh(layer_norm(x, weights[f"{of}trunk.scale"], weights[f"{of}trunk.shift"]))
        return x.reshape(*images.shape[:-3], -1)

    def see(self, frame, first: bool = False) -> np.ndarray:
        """The action for a new frame, with the ones before it; `first` fills the stack with this one.

        Where there are images and vectors, it is for the environment's own observation.
        """
        images, vector = self.parted(frame, 1) if self.many else ([np.asarray(frame)], None)
        if first or self.frames is None:
            self.frames = [images] * self.stack
        self.frames = [*self.frames[1:], images]
        stacks = [np.concatenate(frames, -1) for frames in zip(*self.frames)]
        return self(stacks[0]) if vector is None else self.act(stacks, vector)


def gathered(observation, parts: list, shape: tuple):
    """The array of `shape` that a network reads, of the environment's own observation or of a batch of them.

    `parts` are those of contract.json, none where the two are alike. What is such an array already passes as it is.
    """
    if not parts:
        return observation
    if any(part["path"] for part in parts):
        if not isinstance(observation, (Mapping, tuple)):
            return observation
    elif not is_own(np.asarray(observation), parts[0]):
        return observation
    if len(shape) == 3:  # an image, with the frames before it
        image = np.asarray(reached(observation, parts[0]))
        return image[..., None] if image.shape[-2:] == shape[:2] and shape[2] == 1 else image
    found = [entries(np.asarray(reached(observation, part)), part) for part in parts]
    if len({x.shape[:-1] for x in found}) > 1:
        raise ValueError(f"the parts of an observation are batches of unequal length: {[len(x) for x in found]}")
    return np.concatenate(found, -1)


def are_many(parts: list) -> bool:
    """Whether these are images and vectors, or several images."""
    return len(parts) > 1 and any(part.get("image") for part in parts)


def parted(observation, parts: list, stack: int) -> tuple[list, np.ndarray]:
    """Images, `stack` frames on the last axis, and the vector of the environment's own observation, or of a batch."""
    if not isinstance(observation, (Mapping, tuple)):
        names = ", ".join(".".join(map(str, part["path"])) for part in parts)
        raise ValueError(f"an observation has the parts {names}: give it as the environment does")
    images, numbers = [], []
    for part in parts:
        x = np.asarray(reached(observation, part))
        if part.get("image"):
            images.append(frames_of(x, part, stack))
        else:
            numbers.append(entries(x, part))
    lead = {x.shape[:-3] for x in images} | {x.shape[:-1] for x in numbers}
    if len(lead) > 1:
        raise ValueError(f"the parts of an observation are batches of unequal length: {sorted(lead)}")
    return images, np.concatenate([*numbers, np.zeros((*lead.pop(), 0), np.float32)], -1)


def zeros_of(part: dict, stack: int) -> np.ndarray:
    """A part of zeros or, of a discrete one, of its least choices."""
    if part.get("image"):
        height, width, channels = (*part["shape"], 1)[:3]
        return np.zeros((height, width, channels * stack), np.uint8)
    if part["sizes"]:
        return np.array(part["starts"]).reshape(part["shape"])
    return np.zeros(part["shape"], np.float32)


def nested(parts: list, arrays: list) -> dict:
    """Arrays under the keys and places that lead to their parts."""
    whole: dict = {}
    for part, array in zip(parts, arrays):
        inside = whole
        for key in part["path"][:-1]:
            inside = inside.setdefault(key, {})
        inside[part["path"][-1]] = array
    return whole


def frames_of(x: np.ndarray, part: dict, stack: int) -> np.ndarray:
    """An image or a batch of them, with its frames on the last axis."""
    name, own = ".".join(map(str, part["path"])), tuple(part["shape"])
    if len(own) == 2 and stack == 1 and x.shape[-2:] == own:
        x = x[..., None]
    shape = (*own[:2], ((*own, 1)[2]) * stack)
    if x.shape[-3:] != shape or x.ndim > 4:
        frames = f", the last {stack} frames on the last axis, oldest first" if stack > 1 else ""
        raise ValueError(f"{name} has shape {shape}{frames}, or is a batch of them, not {x.shape}")
    if x.dtype != np.uint8:
        raise ValueError(f"images are uint8 from 0 to 255, and {name} is {x.dtype}")
    return x


def is_own(x: np.ndarray, part: dict) -> bool:
    """Whether an array is an observation of one part as the environment gives it: whole numbers for a discrete one."""
    own = list(x.shape) == part["shape"] or list(x.shape[1:]) == part["shape"]
    return own and (x.dtype.kind in "iub" or not part["sizes"])


def reached(observation, part: dict):
    """One part of an observation."""
    for key in part["path"]:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the observation lacks its part {'.'.join(map(str, part['path']))}") from None
    return observation


def entries(x: np.ndarray, part: dict) -> np.ndarray:
    """One part, or a batch of it, as numbers on the last axis: discrete ones one-hot."""
    name, shape = ".".join(map(str, part["path"])) or "observation", tuple(part["shape"])
    lead = x.shape[: x.ndim - len(shape)]
    if x.shape[len(lead) :] != shape or len(lead) > 1 or x.dtype.kind not in "fiub":
        raise ValueError(f"{name} has shape {shape}, or is a batch of them, not {x.dtype} of shape {x.shape}")
    flat = x.reshape(*lead, int(np.prod(shape)))
    if not part["sizes"]:
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as not finite
            return flat.astype(np.float32)
    chosen = [
        flat[..., i, None] == np.arange(n) + least for i, (n, least) in enumerate(zip(part["sizes"], part["starts"]))
    ]
    if not all(one.any(-1).all() for one in chosen):
        raise ValueError(f"{name} is {x.tolist()}, which is not among its choices")
    return np.concatenate(chosen, -1).astype(np.float32)


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of bounded size: no pipe and no device."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise ValueError(f"{path} is not a file of at most {most} bytes: export the policy again")
        return opened.read(most)


ARRAYS = {
    "dense": ("weight", "bias"),
    "layer_norm": ("scale", "shift"),
    "standardize": ("mean", "scale", "shift"),
}


def with_arrays(network: list[str], weights: dict) -> list[tuple[str, list]]:
    """Every operation of the network with its arrays, named by the operation and its number among its like."""
    count = dict.fromkeys(network, 0)
    found = []
    for name in network:
        found.append((name, [weights[f"{name}.{count[name]}.{part}"] for part in ARRAYS.get(name, ())]))
        count[name] += 1
    return found


def operate(name: str, arrays: list, x: np.ndarray, kept: list) -> np.ndarray:
    """One operation; `keep` and `add` are the start and the end of a residual connection."""
    if name == "dense":
        return x @ arrays[0] + arrays[1]
    if name == "layer_norm":
        return layer_norm(x, *arrays)
    if name == "standardize":
        return (x - arrays[0]) * arrays[1] + arrays[2]
    if name == "keep":
        kept.append(x)
    if name == "add":
        return x + kept.pop()
    active = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "silu": lambda x: x / (1 + np.exp(-x))}
    return active[name](x) if name in active else x


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + np.float32(1e-6)) * scale + shift


def read_contract(path: Path) -> dict:
    """The contract, once its own checksum and its format are known to be right."""
    contract = json.loads(read_regular(path, 1 << 20))
    seal = contract.pop("checksum", None)
    if contract.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {contract.get('format')}, and this runner reads {FORMAT}")
    if seal != checksum(contract):
        raise ValueError(f"{path} was changed after it was written: export the policy again")
    return contract


def checksum(contract: dict) -> str:
    """SHA-256 of a contract without its own checksum, whatever the layout of the file."""
    return hashlib.sha256(json.dumps(contract, sort_keys=True).encode()).hexdigest()


def convolve(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """Unpadded convolution of [batch, height, width, channels] with [height, width, channels, filters]."""
    windows = sliding_window_view(x, weight.shape[:2], (1, 2))[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
    rows = windows.reshape(-1, weight[..., 0].size) @ weight.reshape(-1, weight.shape[-1])
    return rows.reshape(*windows.shape[:3], -1)


def latency(act, observation, count: int = 1000) -> tuple[float, float]:
    """Median and 99th percentile of the milliseconds that one action takes."""
    for _ in range(max(3, count // 10)):
        act(observation)
    took = np.empty(count)
    for i in range(count):
        began = time.perf_counter()
        act(observation)
        took[i] = time.perf_counter() - began
    return float(np.median(took)) * 1e3, float(np.quantile(took, 0.99)) * 1e3


def main() -> None:
    try:
        policy = Policy(sys.argv[1]) if len(sys.argv) > 1 else Policy()
    except (OSError, ValueError) as error:
        sys.exit(f"policy.py: {error}")
    zeros = policy.zeros()
    median, high = latency(policy, zeros, 20 if policy.strides else 1000)
    print(f"{policy.contract['algorithm']} on {policy.contract['environment']}: files are whole")
    print(f"action for zeros: {policy(zeros).tolist()}")
    print(f"one action takes {median:.3f} ms (median), {high:.3f} ms (99th percentile)")


if __name__ == "__main__":
    main()
