"""Prior data from files: .npz, and HDF5 as D4RL, Minari and robomimic lay it out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from maxinforl import files
from maxinforl.errors import BadInput, missing_extra, unknown
from maxinforl.prior import NPZ, SEE, Prior
from maxinforl.settings import Settings
from maxinforl.system.memory import available_memory

FORMATS = ("npz", "d4rl", "minari", "robomimic")
COPIES = 3  # of a file's numbers that are in memory while it is read: its own, successors and the replay
NAMES = {ours: (theirs,) for ours, theirs in NPZ.items()}  # what columns are called in files
NAMES |= {"terminated": ("terminals", "terminations"), "truncated": ("timeouts", "truncations")}
Reward = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]
Columns = dict[str, np.ndarray]


def load_prior(
    path: str | Path,
    *,
    format: str | None = None,
    obs_keys: Sequence[str] | None = None,
    reward: Reward | None = None,
    limit: int | None = None,
) -> Prior:
    """Prior data from a file.

    Args:
        path: an .npz file, or an HDF5 file of D4RL, Minari or robomimic, which needs `maxinforl[hdf5]`.
        format: npz, d4rl, minari or robomimic; by default what the file looks like.
        obs_keys: parts of the observation in order, where the file keeps them apart.
        reward: a function of (obs, action, next_obs), all rows at once, in place of the file's rewards.
        limit: the most transitions to read, from the first on.

    Returns:
        A `Prior`, for `make(prior=...)`.
    """
    return read_prior(path, format, obs_keys, reward, limit)


def read_prior(
    path: str | Path,
    format: str | None = None,
    obs_keys: Sequence[str] | None = None,
    reward: Reward | None = None,
    limit: int | None = None,
    parts: Sequence[str] | None = None,
) -> Prior:
    """As `load_prior`; `parts` is the environment's order of parts, where the caller names none."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise unknown("format of prior data", format, FORMATS)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadInput(f"limit must be a whole number of at least 1, not {limit!r}")
    is_npz = starts_with(path, b"PK")
    if format is not None and (format == "npz") != is_npz:
        raise BadInput(f"{files.printable(path)} is not of the format {format}: leave format= out")
    if is_npz:
        columns = read_npz_columns(path, limit)
        if obs_keys is not None:
            raise BadInput(f"{files.printable(path)} has observations of one part: leave obs_keys= out", SEE)
    else:
        columns = read_hdf5(path, format, obs_keys, parts, limit)
    return assemble(path, columns, reward, limit)


def find_prior(settings: Settings, given: Prior | None, parts: Sequence[str] | None = None) -> Prior | None:
    """The prior data of a run: what was given, or what its settings name.

    Args:
        settings: resolved settings.
        given: what `make(prior=...)` was given.
        parts: names of the observation's parts in the environment's order, for files that keep them apart.
    """
    if given is not None and settings.prior_data is not None:
        raise BadInput("prior= and prior_data= are two sources of prior data: give one of them", SEE)
    if given is not None:
        return given
    if settings.prior_data is not None:
        return read_prior(settings.prior_data, parts=parts)
    if settings.prior_share is not None:
        raise BadInput(
            f"--prior-share {settings.prior_share:g} is of prior data, and there is none: name a file with "
            "--prior-data, or pass what was given before as prior=",
            SEE,
        )
    return None


def assemble(path: Path, columns: Columns, reward: Reward | None, limit: int | None) -> Prior:
    """A `Prior` of columns that have successors, with the rewards that are asked for."""
    columns = {name: column[:limit] for name, column in columns.items()}
    try:
        if reward is not None:
            columns["reward"] = np.asarray(reward(columns["obs"], columns["action"], columns["next_obs"]))
        elif "reward" not in columns:
            raise BadInput("it has no rewards: pass load_prior(path, reward=function of obs, action, next_obs)")
        return Prior(**columns)
    except BadInput as error:
        raise BadInput(f"{files.printable(path)}: {error}", SEE) from None


def starts_with(path: Path, magic: bytes) -> bool:
    with files.reading(path):
        if path.is_dir():
            raise BadInput(f"{files.printable(path)} is a directory: name the file in it that holds the data")
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic


def check_fits(path: Path, bytes_needed: float) -> None:
    """Refuses, before it is read, what memory could not hold."""
    free, needed = available_memory(), COPIES * bytes_needed
    if free is not None and needed > 0.9 * free:
        raise BadInput(
            f"{files.printable(path)} needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: use a "
            "smaller file, or pass make(prior=load_prior(path, limit=ROWS))",
            SEE,
        )


# ------------------------------------------------------------ N rows, one after the other: .npz and D4RL


def read_npz_columns(path: Path, limit: int | None) -> Columns:
    shapes = files.npz_shapes(path)
    names = flat_names(path, shapes)
    rows = None if limit is None else limit + 1
    check_fits(path, sum(size_of(*shapes[name], rows) for name in names.values()))
    arrays = files.read_npz(path, names.values(), 1 << 62, rows=rows, inflate=True)
    return flat_columns(path, dict(zip(names, arrays)))


def size_of(shape: tuple[int, ...], dtype: Any, rows: int | None) -> float:
    """Bytes of an array, of at most so many rows."""
    taken = shape if rows is None or not shape else (min(rows, shape[0]), *shape[1:])
    return math.prod(taken) * np.dtype(dtype).itemsize


def flat_names(path: Path, there: Mapping[str, Any]) -> dict[str, str]:
    """The names of a file's arrays, by those of a `Prior`."""
    found = {ours: name for ours, names in NAMES.items() for name in names if name in there}
    for ours in ("obs", "action", "terminated"):
        if ours not in found:
            names = " or ".join(f"'{name}'" for name in NAMES[ours])
            raise BadInput(f"{files.printable(path)} lacks the array {names}", SEE)
    if not {"next_obs", "truncated"} & found.keys():
        raise BadInput(
            f"{files.printable(path)} has neither 'next_observations' nor 'timeouts', so where its episodes were cut "
            "cannot be known: add one of them",
            SEE,
        )
    return found


def flat_columns(path: Path, columns: Columns) -> Columns:
    """Columns with successors. Without them in the file, that of a row is the observation of the row after.

    That is another episode's where time ran out, so such rows are dropped, as D4RL does. The successor of a terminal
    row is unknown as well; no critic reads it, and its own observation stands in for it.
    """
    rows = {len(np.atleast_1d(column)) for column in columns.values()}
    if any(column.ndim == 0 for column in columns.values()):
        raise BadInput(f"{files.printable(path)} holds a single number where an array of rows belongs", SEE)
    if len(rows) > 1:
        raise BadInput(f"the arrays of {files.printable(path)} have {' and '.join(map(str, sorted(rows)))} rows", SEE)
    columns = columns | {name: columns[name].reshape(len(columns[name]), -1) for name in ("obs", "action")}
    if "next_obs" in columns:
        return columns | {"next_obs": columns["next_obs"].reshape(len(columns["next_obs"]), -1)}
    terminated, truncated = (np.asarray(columns[name]).astype(bool) for name in ("terminated", "truncated"))
    obs = columns["obs"]
    successor = np.where(terminated[:, None], obs, np.concatenate([obs[1:], obs[-1:]]))
    known = terminated | ~truncated
    known[-1:] &= terminated[-1:]
    return {name: column[known] for name, column in (columns | {"next_obs": successor}).items()}


# ------------------------------------------------------------ HDF5


@contextmanager
def hdf5(path: Path) -> Iterator[Any]:
    """An open HDF5 file; whatever is wrong with it is one sentence."""
    try:
        import h5py
    except ImportError as error:
        raise missing_extra("hdf5", f"{files.printable(path)}, which is not an .npz file,") from error
    if not h5py.is_hdf5(path):
        raise BadInput(f"{files.printable(path)} is neither an .npz nor an HDF5 file: name one of them", SEE)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except BadInput:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{files.printable(path)} is damaged or laid out in an unknown way: {files.printable(str(error))}", SEE
        ) from None


def read_hdf5(
    path: Path, format: str | None, keys: Sequence[str] | None, parts: Sequence[str] | None, limit: int | None
) -> Columns:
    with hdf5(path) as file:
        found = looks_like(path, file)
        if format not in (None, found):
            raise BadInput(f"{files.printable(path)} is not of the format {format} but of {found}: leave format= out")
        if found == "d4rl":
            if keys is not None:
                raise BadInput(f"{files.printable(path)} has observations of one part: leave obs_keys= out", SEE)
            return read_d4rl(path, file, limit)
        episode = minari_episode if found == "minari" else robomimic_episode
        groups = numbered(file if found == "minari" else own(file, "data"))
        observations = Observations(path, keys, parts)
        return joined(path, groups, lambda group: episode(group, observations), limit)


def looks_like(path: Path, file: Any) -> str:
    if "data" in file and hasattr(data := own(file, "data"), "keys") and numbered(data):
        return "robomimic"
    if any(name.startswith("episode_") for name in file):
        return "minari"
    if "observations" in file and "actions" in file:
        return "d4rl"
    raise BadInput(
        f"{files.printable(path)} is laid out neither as D4RL ('observations', 'actions') nor as Minari "
        "('episode_0', ...) nor as robomimic ('data/demo_0', ...)",
        SEE,
    )


def numbered(group: Any) -> list[Any]:
    """Episodes of a group by their numbers."""
    names = [name for name in group if re.fullmatch(r"(?:episode|demo)_\d+", name)]
    return [own(group, name) for name in sorted(names, key=lambda name: int(name.split("_")[1]))]


def own(group: Any, name: str) -> Any:
    """An entry of a group that lies in this very file: others may not be read by naming them here."""
    import h5py

    entry = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if entry is None or (isinstance(entry, h5py.Dataset) and (entry.is_virtual or entry.external)):
        raise ValueError(f"'{name}' is a link to elsewhere")
    return entry


def read_d4rl(path: Path, file: Any, limit: int | None) -> Columns:
    names = flat_names(path, file)
    rows = None if limit is None else limit + 1
    sets = {ours: own(file, name) for ours, name in names.items()}
    check_fits(path, sum(size_of(d.shape, d.dtype, rows) for d in sets.values()))
    return flat_columns(path, {name: d[:rows] for name, d in sets.items()})


class Observations:
    """Reads observations that are one array, or a group of parts in the order that is asked for."""

    def __init__(self, path: Path, keys: Sequence[str] | None, parts: Sequence[str] | None):
        self.path, self.keys, self.parts = path, keys, parts

    def __call__(self, entry: Any) -> np.ndarray:
        if not hasattr(entry, "keys"):
            if self.keys is not None:
                raise BadInput(f"{files.printable(self.path)} has observations of one part: leave obs_keys= out", SEE)
            return flat(entry)
        keys, there = self.keys or self.parts, [*entry]
        missing = [key for key in keys or () if key.split(".")[0].split("/")[0] not in there]
        if not keys or missing:
            lacks = f", and not '{missing[0]}'" if missing else ""
            raise BadInput(
                f"{files.printable(self.path)} has observations of the parts {', '.join(there)}{lacks}: name them in "
                "the environment's order with load_prior(path, obs_keys=(...))",
                SEE,
            )
        return np.concatenate([flat(self.part(entry, key)) for key in keys], 1)

    def part(self, entry: Any, key: str) -> Any:
        for name in re.split(r"[./]", key):
            entry = own(entry, name)
        return entry


def flat(entry: Any) -> np.ndarray:
    """[rows, width] of whatever shape a row has."""
    array = np.asarray(entry[:], np.float32)
    return array.reshape(len(array), -1)


def minari_episode(group: Any, observations: Observations) -> Columns:
    obs = observations(own(group, "observations"))
    read = lambda name: own(group, name)[:]
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": flat(own(group, "actions")),
        "reward": read("rewards"),
        "terminated": read("terminations"),
        "truncated": read("truncations"),
    }


def robomimic_episode(group: Any, observations: Observations) -> Columns:
    """A demonstration. `dones` marks success in some files and the end of the recording in others, so that it only
    truncates; where successors are missing the last row is dropped."""
    if "obs" not in group:
        raise BadInput(
            f"{files.printable(observations.path)} holds no observations but only simulator states: extract them with "
            "robomimic's dataset_states_to_obs first",
            SEE,
        )
    obs, action = observations(own(group, "obs")), flat(own(group, "actions"))
    following = observations(own(group, "next_obs")) if "next_obs" in group else obs[1:]
    rows = len(following)
    columns = {"obs": obs[:rows], "next_obs": following, "action": action[:rows], "terminated": np.zeros(rows, bool)}
    if "rewards" in group:
        columns["reward"] = own(group, "rewards")[:rows]
    dones = own(group, "dones")[:rows] if "dones" in group else np.zeros(rows)
    return columns | {"truncated": np.append(np.asarray(dones[:-1]).astype(bool), np.ones(min(rows, 1), bool))}


def joined(path: Path, groups: Sequence[Any], read: Callable[[Any], Columns], limit: int | None) -> Columns:
    """The columns of episodes one after the other, until there are enough rows; the first tells how much they take."""
    lengths = [len(own(group, "actions")) for group in groups]
    wanted = len(groups) if limit is None else int(np.searchsorted(np.cumsum(lengths), limit)) + 1
    episodes: list[Columns] = []
    for group in groups[:wanted]:
        episodes.append(read(group))
        if len(episodes) == 1:
            each = sum(column.nbytes for column in episodes[0].values()) / max(lengths[0], 1)
            check_fits(path, each * sum(lengths[:wanted]))
    return {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}
