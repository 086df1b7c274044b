"""The host loop: environments step in NumPy, everything else is one XLA dispatch per agent step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxinforl.core.program import Packed, shared_program, unpack
from maxinforl.core.types import Clock
from maxinforl.core.update import TrainState
from maxinforl.envs import EnvPool, most_steps
from maxinforl.envs.fault import finite
from maxinforl.errors import BadInput, RunFailed
from maxinforl.explore import Strategy
from maxinforl.prior import Prior, as_replay, in_units, part_names
from maxinforl.prior_files import find_prior
from maxinforl.replay import Replay, row_bytes
from maxinforl.settings import Settings, check_updates, prior_rows
from maxinforl.spaces import Spaces
from maxinforl.system import memory
from maxinforl.training import nonfinite
from maxinforl.training.log import Window
from maxinforl.transition import Transition

SHORTEST = 20  # episodes at least this long lose nothing to the row that each one's end takes
UNREAD = 256  # most steps whose metrics stay on the device


def rows_for(steps: int, settings: Settings) -> int:
    """Rows per environment for this many transitions in all, up to the capacity."""
    wanted = steps + steps // SHORTEST + 64 * settings.num_envs
    return math.ceil(min(wanted, settings.capacity or wanted) / settings.num_envs) + 8


def replay_bytes(settings: Settings, steps: int, spaces: Spaces, seeds: int = 1) -> int:
    """Bytes of the replay of a run of this many transitions, of all seeds together."""
    shape, dtype = spaces.observation.shape, spaces.observation.dtype
    return (
        seeds * settings.num_envs * rows_for(steps, settings) * row_bytes(shape, dtype.itemsize, spaces.action.shape[0])  # type: ignore[union-attr]
    )


def tree_bytes(tree: Any) -> int:
    """Bytes of the arrays in a tree, or of those that it outlines."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_memory(settings: Settings, steps: int, spaces: Spaces, seeds: int = 1, like: Any = ()) -> None:
    """Refuses, before anything is taken, what is more than there is: the replay, and an agent `like` that, per seed."""
    replay, agent = replay_bytes(settings, steps, spaces, seeds), seeds * tree_bytes(like)
    free = memory.available_memory()
    if free is not None and replay + agent > 0.9 * free:
        raise BadInput(
            f"the replay needs {replay / 1e9:.1f} GB, the agent {agent / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            ": lower --capacity, --image-size or the networks (--set base.hidden)"
        )


def short_replay(settings: Settings, env: Any) -> str | None:
    """A sentence where an episode may be longer than the rows that the replay keeps of it, by which it is resumed."""
    rows, limit = rows_for(settings.steps, settings), most_steps(env)
    length = 0 if limit is None else min(limit // (settings.action_repeat or 1), settings.steps // settings.num_envs)
    if length < rows:
        return None
    return (
        f"an episode may have {length} steps, and the replay keeps {rows} of an environment: killed inside a longer "
        "episode, the run will go on with a new one and not be bit-identical: raise --capacity"
    )


@dataclass
class SeedView:
    """One seed's share of a trainer."""

    trainer: Trainer
    index: int
    settings: Settings
    _window: Window = field(default_factory=Window)

    @property
    def window(self) -> Window:
        """What happened since the last log line, up to now."""
        self.trainer.drain_metrics()
        return self._window

    @property
    def step(self) -> int:
        return self.trainer.step

    @property
    def env_step(self) -> int:
        return self.step * (self.settings.action_repeat or 1)

    @property
    def at(self) -> tuple[int, ...]:
        """The index of this seed's part of an array; a seed that trains alone has no axis of its own."""
        return () if self.trainer.alone else (self.index,)

    @property
    def agent(self) -> Any:
        state = self.trainer.state.agent
        return state if self.trainer.alone else jax.tree.map(lambda leaf: leaf[self.index], state)

    @property
    def noise(self) -> Any:
        """Of the behaviour, where it is correlated."""
        return jax.tree.map(lambda leaf: leaf[self.at], self.trainer.state.noise)

    @property
    def sums(self) -> Any:
        """Of the rewards of each open episode, where returns are normalised."""
        return jax.tree.map(lambda leaf: leaf[self.at], self.trainer.state.sums)

    @property
    def evaluation(self) -> Callable[[np.ndarray], np.ndarray]:
        """The deterministic policy as it is now, on a batch of observations."""
        self.trainer.drain_metrics()
        agent, now, acting = self.agent, self.trainer.state.clock, self.trainer.acting
        return lambda obs: acting.act(agent, obs, now)

    def log_line(self) -> dict[str, float]:
        """Everything worth knowing since the last line; a number that is not finite ends the run, or with --on-nan skip
        is left out."""
        line = self.window.drain(self.trainer.program.metric_names)
        if self.trainer.strategy.measures_error and line.get("explore/model_error") is not None:
            found = self.trainer.program.recent_error(self.trainer.state)
            line |= {name: float(np.array(value)[self.at]) for name, value in found.items()}
        for name in [name for name, value in line.items() if not math.isfinite(value)]:
            value = line.pop(name)
            if self.settings.on_nan == "stop":
                raise RunFailed(f"{name} is {value} at step {self.step}: lower the learning rate or scale the reward")
        faults = {"rollout/faults": self.trainer.pools[self.index].faults} if self.trainer.pools else {}
        return {"step": self.step, "env_step": self.env_step} | faults | line

    def visited(self, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
        """States of all environments that are still in the replay, by the order they were met in, at most `most`."""
        replay = self.trainer.state.replay
        heads, rows = np.array(replay.head)[self.at], replay.age.shape[-1]
        held = [np.arange(max(0, head - rows + 1), head + 1) for head in heads]
        order, lane = np.concatenate(held), np.repeat(np.arange(len(heads)), [len(rows_of) for rows_of in held])
        kept = np.argsort(order, kind="stable")[:: max(1, math.ceil(len(order) / most))]
        order, lane = order[kept], lane[kept]
        return order * len(heads), np.array(replay.obs[(*self.at, lane, order % rows)])


@dataclass
class Trainer:
    """Agents in their environments: one seed, or several side by side in one program with a pool of lanes each."""

    strategy: Strategy
    per_seed_settings: Sequence[Settings]  # that differ in the seed alone
    pools: Sequence[EnvPool]
    total: int  # transitions to have room for, and that schedules plan for where no file says otherwise
    restored: bool = False  # its replay will come from a checkpoint, so that it takes no room for one yet
    prior: Prior | None = None  # data given as an object; a file is named in the settings

    def __post_init__(self):
        memory.keep_freed_memory()
        self.settings = self.per_seed_settings[0]
        self.seeds = [SeedView(self, i, settings) for i, settings in enumerate(self.per_seed_settings)]
        self.stack = self.spaces.stack(self.settings)
        same = (self.strategy, self.spaces.spec(self.settings), self.settings.batch_size, check_updates(self.settings))
        prior = find_prior(self.settings, self.prior, self.part_names)
        self.prior_digest = None if prior is None else prior.digest
        last = (self.settings.on_nan == "skip", prior_rows(self.settings))
        self.program = shared_program(*same, None if self.alone else len(self.seeds), *last)
        self.acting = shared_program(*same, None, *last)  # one seed at a time
        self.step = 0
        self.action = None
        seeds = np.array([s.seed for s in self.per_seed_settings], np.uint32)
        replay = self.blank(0 if self.restored else self.total)
        state = self.program.init(jnp.asarray(seeds[0] if self.alone else seeds), replay, self.total)
        if prior is not None and prior_rows(self.settings):
            state = self.guided(state, prior)
        self.state: TrainState | Packed = shard_seeds(state) if not self.alone else state

    def guided(self, state: TrainState, prior: Prior) -> TrainState:
        """The state with prior data beside its own, which running statistics begin with."""
        rows = as_replay(in_units(prior, self.spaces, self.settings.env))
        observes = self.strategy.base.observes
        agent = self.program.observe_prior(state.agent, rows) if observes else state.agent
        return replace(state, agent=agent, prior=rows)

    @property
    def part_names(self) -> list[str] | None:
        """Of the parts of an observation, where the environment says so."""
        lanes = getattr(self.pools[0], "envs", ()) if self.pools else ()
        return part_names(lanes[0]) if lanes else None

    @property
    def alone(self) -> bool:
        return len(self.seeds) == 1

    @property
    def num_envs(self) -> int:
        """Environments of each seed."""
        return self.settings.num_envs if not self.pools else self.pools[0].num_envs

    @property
    def spaces(self) -> Spaces:
        return Spaces(self.pools[0].observation_space, self.pools[0].action_space)

    def blank(self, steps: int) -> Replay:
        obs, action = self.spaces
        check_memory(self.settings, steps, self.spaces, len(self.per_seed_settings))
        rows = rows_for(steps, self.settings)
        shape = (self.num_envs, rows, obs.shape, obs.dtype, action.shape[0])
        create = lambda: Replay.create(*shape, self.stack, self.program.spec.layout)
        if self.alone:
            return create()
        zeros = lambda column: jnp.zeros((len(self.per_seed_settings), *column.shape), column.dtype)
        return jax.tree.map(zeros, jax.eval_shape(create))  # never two copies of what may be most of the memory

    def joined(self, parts: Sequence[Any], stack: Callable = np.stack) -> Any:
        """What each seed has as one tree: with a leading axis of seeds where there are several."""
        return parts[0] if self.alone else jax.tree.map(lambda *leaves: stack(leaves), *parts)

    def each(self, whole: np.ndarray) -> Sequence[np.ndarray]:
        return [whole] if self.alone else list(whole)

    def make_room(self, steps: int) -> None:
        """Rows for `steps` more transitions of a seed, where the capacity allows and nothing was overwritten yet.

        Twice as many as there were at least: programs are compiled anew for another replay, so many short calls must
        not each ask for one.
        """
        if self.alone and rows_for(self.step + steps, self.settings) > self.state.replay.rows:
            wanted = max(self.step + steps, 2 * self.step)
            check_memory(self.settings, wanted, self.spaces)
            replay = self.state.replay.grow(rows_for(wanted, self.settings))
            self.state = replace(unpack(self.state), replay=replay)

    def replan(self, total: int) -> None:
        """Schedules for another number of transitions than they were begun with."""
        clock = self.state.clock._replace(total=jnp.int32(total))
        self.state = replace(unpack(self.state), clock=clock)

    @property
    def planned(self) -> int:
        """Transitions that schedules are planned for: `total`, or what a file said."""
        return int(self.state.clock.total)

    def adopt(self, agent: Any, clock: Clock) -> None:
        """Continues with an agent that was loaded, on an empty replay; schedules stay planned as its file says."""
        total = jnp.int32(int(clock.total) or self.planned)  # 0: nothing was planned yet
        clock = clock._replace(step=self.state.clock.step, total=total)
        self.state = replace(unpack(self.state), agent=agent, clock=clock)

    @property
    def action(self) -> np.ndarray | None:
        """The next actions of every environment, once the dispatch that chooses them is through; None before the first.

        Raises NotFinite where that dispatch met a number that is not finite.
        """
        if self._chosen is not None:
            chosen, metrics = self._chosen
            action = np.array(chosen)
            if not finite(action):
                self._chosen = None  # raised once: a caller that goes on does so with the actions before
                raise nonfinite.first_bad(self.program, self.state, np.stack(metrics, -2), action)
            self._action, self._chosen = action, None
            self._metrics += metrics
        return self._action

    @action.setter
    def action(self, action: np.ndarray | None) -> None:
        self._action = action
        self._chosen: tuple[jax.Array, list[jax.Array]] | None = None  # actions and metrics of the dispatch under way
        self._metrics: list[jax.Array] = []  # of the steps since then that were not read yet

    def drain_metrics(self) -> None:
        """Waits for the last dispatch and gives every seed the metrics of the steps since the last call.

        Metrics stay on the device until they are logged: reading them at each step would cost more than all else that
        the host does.
        """
        while self.action is not None and self._metrics:
            for seed, own in zip(self.seeds, self.each(np.array(self._metrics[0])[..., :-1])):
                seed._window.add(own)
            del self._metrics[0]

    @property
    def warming_up(self) -> bool:
        """Whether actions are still uniform."""
        return self.step < (self.settings.learning_starts or 0)

    def begin(self) -> None:
        first = self.joined([pool.reset() for pool in self.pools])
        self.state, action = self.program.begin(self.state, first, self.warming_up)
        self.action = np.array(action)

    def advance(self, most: int = 1) -> list[tuple[int, np.ndarray]]:
        """One step of every environment, then a dispatch that inserts, learns and chooses the next actions.

        The dispatch is asynchronous: what the host does until the next call runs beside the device's work.

        Returns:
            For each step made (at most `most`) its number and the observations it led to: [seeds, environments, ...].
        """
        if self.action is None:
            self.begin()
        if len(self._metrics) >= UNREAD:
            self.drain_metrics()
        parts = self.play()
        self.step += self.num_envs
        dispatch = self.program.collect if self.warming_up else self.program.step
        self.state, action, *metrics = dispatch(self.state, self.joined(parts))
        self._chosen = action, metrics
        for seed, pool in zip(self.seeds, self.pools):
            for _, ret, length in pool.finished:
                seed._window.episode(ret, length)
            pool.finished.clear()
        led = [part.next_obs for part in parts]
        return [(self.step, led[0][None] if self.alone else np.stack(led))]

    def play(self) -> list[Transition]:
        """One step of every seed's environments."""
        assert self.action is not None
        before = [(pool.episodes.copy(), pool.faults, len(pool.finished)) for pool in self.pools]
        try:
            return [pool.step(action) for pool, action in zip(self.pools, self.each(self.action))]
        except RunFailed:  # the step did not happen, so that a checkpoint is of the one before
            for pool, (episodes, faults, finished) in zip(self.pools, before):
                pool.episodes[:], pool.faults = episodes, faults
                del pool.finished[finished:]
            raise

    # ------------------------------------------------------------ what a checkpoint holds beyond agent and replay

    def env_state(self, seed: SeedView) -> dict[str, np.ndarray]:
        """Where a seed's environments are."""
        assert self.action is not None
        action, pool = self.each(self.action)[seed.index], self.pools[seed.index]
        return {"action": action, "episodes": pool.episodes.copy(), "faults": np.array(pool.faults)}

    def env_state_kinds(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of all that `env_state` gives."""
        action = (self.num_envs, *self.spaces.action.shape)
        return {"action": (action, np.float32), "episodes": ((self.num_envs,), np.int64), "faults": ((), np.int64)}

    def restore_env_state(self, states: Sequence[dict[str, np.ndarray]]) -> list[str]:
        """Brings every environment to where it was, by its episode's seed and actions; a sentence for each seed whose
        environment did not repeat."""
        self.action = np.array(self.joined([state["action"] for state in states]))
        for pool, state in zip(self.pools, states):
            pool.faults = int(state.get("faults", 0))
        changed = [replay_episodes(seed, state["episodes"]) for seed, state in zip(self.seeds, states)]
        return [sentence for sentence in changed if sentence]

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def shard_seeds(state: TrainState) -> TrainState:
    """The seeds dealt out to the devices, where there are several and the seeds divide among them."""
    devices, seeds = jax.devices(), state.seed.shape[0]
    if len(devices) == 1 or seeds % len(devices):
        return state
    mesh = jax.sharding.Mesh(np.array(devices), ("seed",))
    dealt = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seed"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    put = lambda tree, sharding: jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), tree)
    return TrainState(
        put(state.agent, dealt),
        put(state.replay, dealt),
        put(state.clock, whole),
        put(state.seed, dealt),
        put(state.noise, dealt),
        put(state.sums, dealt),
        put(state.prior, whole),
    )


def replay_episodes(seed: SeedView, episodes: np.ndarray) -> str | None:
    """Brings a seed's environments to where they were, and checks that they got there."""
    trainer, at = seed.trainer, seed.at
    replay, pool = trainer.state.replay, trainer.pools[seed.index]
    heads, rows = np.array(replay.head[at]), replay.age.shape[-1]
    lanes = np.arange(len(heads))
    ages, stored = (np.array(column[(*at, lanes, heads % rows)]) for column in (replay.age, replay.obs))
    lost = ages >= rows  # the first actions of these episodes were overwritten
    past = [
        () if lost[lane] else np.array(replay.action[(*at, lane, np.arange(head - ages[lane], head) % rows)])
        for lane, head in enumerate(heads)
    ]
    reached = repeated(pool, episodes + lost, past)
    if reached is None or not np.array_equal(reached[~lost], stored[~lost]):
        start_afresh(seed, ~np.zeros_like(lost), pool.restore(episodes + 1, [()] * len(heads)))
        return (
            "this environment does not repeat an episode from its seed and actions, so the run goes on with new "
            "episodes, the open ones counted as truncated, and is no longer bit-identical to an uninterrupted run"
        )
    if lost.any():
        start_afresh(seed, lost, reached)
        return (
            f"an episode is longer than the {rows} rows that the replay keeps of an environment, so it counts as "
            "truncated and a new one begins; the run is no longer bit-identical to an uninterrupted one: "
            "raise --capacity"
        )
    return None


def repeated(pool: EnvPool, episodes: np.ndarray, past: Sequence[Any]) -> np.ndarray | None:
    """What the lanes of a pool see once these actions were played in these episodes; None where that cannot be."""
    if pool.seedable:
        with suppress(RunFailed):
            return pool.restore(episodes, past)
    return None


def start_afresh(seed: SeedView, lanes: np.ndarray, obs: np.ndarray) -> None:
    """New episodes, which begin with `obs`, in some lanes of a seed; those that were open are cut, as an environment
    that breaks cuts them. All other lanes and seeds stay as they are."""
    trainer, at, none = seed.trainer, seed.at, np.zeros_like(lanes)
    whole, before = trainer.state.replay, np.array(trainer.action)
    cut = Transition(before[at], none.astype(np.float32), none, lanes, obs, obs, none)
    replay = jax.tree.map(lambda leaf: leaf[at], whole).add(cut)
    if at:
        replay = jax.tree.map(lambda w, r: w.at[at].set(r), whole, replay)
    sums = jax.tree.map(lambda leaf: leaf.at[(*at, np.flatnonzero(lanes))].set(0), trainer.state.sums)
    trainer.state = replace(unpack(trainer.state), replay=replay, sums=sums)
    fresh = np.array(trainer.program.next_action(trainer.state, trainer.warming_up))
    before[at][lanes] = fresh[at][lanes]
    trainer.action = before
