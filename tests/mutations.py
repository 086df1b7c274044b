"""Do the tests bite? Apply one small mistake at a time to a copy of the sources and see whether a test fails.

    python tests/mutations.py                 # all of them (about twenty minutes), a table, exit code 1 if any survives
    python tests/mutations.py --only 3 17     # some of them
    python tests/mutations.py --list

The working tree is never touched. A mutation names a function (or a constant), a pattern of syntax in it and what takes
its place (see ast_patterns.py), and the tests that are expected to catch it. Files, line breaks and local names do not
matter. A pattern that no longer matches exactly once is an error: the mutation must follow the code
(tests/test_mutations.py checks).
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ast_patterns import definitions, substitute

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "maxinforl"

REFERENCE, LEARNER, EXPLORE, LAWS = (f"tests/test_core_{n}.py" for n in ("reference", "learner", "explore", "laws"))
EXPLORERS = "tests/test_explorers.py"
PRIOR = "tests/test_prior.py"
PARTS, INTRINSIC, REPLAY = (f"tests/test_core_{n}.py" for n in ("parts", "intrinsic", "replay"))
SAC = f"{REFERENCE}::test_sac_update_matches_the_equations"
MAXINFO = f"{REFERENCE}::test_maxinfo_update_matches_the_equations"
SUM = f"{REFERENCE}::test_intrinsic_sum_update_matches_the_equations"
EIPO = f"{REFERENCE}::test_eipo_update_matches_the_equations"
SWITCH = f"{REFERENCE}::test_switch_update_matches_the_equations"


@dataclass(frozen=True)
class Mutation:
    what: str
    where: str  # qualified name of a function, or name of a constant
    old: str
    new: str
    tests: tuple[str, ...]
    given: str = ""  # a pattern that matches elsewhere in the function and says what more names stand for
    nth: int | None = None  # which of several matches

    @property
    def file(self) -> Path:
        """The file of the package in which the function is defined."""
        files = [path for path, names in defined().items() if self.where in names]
        if len(files) != 1:
            raise LookupError(f"'{self.what}': {self.where} is defined in {len(files)} files")
        return files[0]

    def apply(self, tree: ast.Module) -> ast.Module:
        """The tree of the file, changed in place."""
        scopes = [scope for name, scope in definitions(tree.body) if name == self.where]
        if len(scopes) != 1:
            raise LookupError(f"'{self.what}': {self.where} is defined {len(scopes)} times")
        try:
            substitute(scopes[0], self.old, self.new, self.given, self.nth)
        except LookupError as error:
            raise LookupError(f"'{self.what}', in {self.where}: {error}") from None
        return ast.fix_missing_locations(tree)


@cache
def defined() -> dict[Path, frozenset[str]]:
    """What every file of the package defines."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {p: frozenset(name for name, _ in definitions(ast.parse(p.read_text()).body)) for p in files}


def m(what: str, where: str, old: str, new: str, *tests: str, given: str = "", nth: int | None = None) -> Mutation:
    return Mutation(what, where, old, new, tests, given, nth)


CRITIC, ACTOR = "ActorCritic.critic_step", "ActorCritic.actor_step"
TARGET, BACKUP = "ActorCritic.td_target", "Replay.backup"
ROUND = f"{LEARNER}::test_a_round_of_critic_steps_is_those_steps_one_by_one"
CLIPPED = f"{PARTS}::test_noise_of_a_deterministic_policy_is_clipped_in_updates_only"

BASES, PIECES = "tests/test_bases_reference.py", "tests/test_bases_laws.py"
XQC = f"{BASES}::test_an_update_matches_the_equations"
SEEN = f"{BASES}::test_statistics_are_of_what_is_acted_on_and_the_last_reward_belongs_to_its_episode"
AFRESH = f"{BASES}::test_a_reset_begins_afresh_but_for_what_was_observed"

ROWS = "tests/test_model_rows.py"
PERFECT = f"{ROWS}::test_a_perfect_model_teaches_what_was_lived"
GATES = f"{ROWS}::test_weights_fall_with_disagreement_and_every_gate_shuts"
RECORD = f"{ROWS}::test_the_record_is_of_batches_before_the_members_train_on_them"
LEFT_OUT = f"{ROWS}::test_rows_whose_real_transition_ended_and_intrinsic_channels_are_left_out"
BEYOND = f"{ROWS}::test_rewards_and_bonuses_beyond_the_real_ones_are_clipped"
SHUT = f"{ROWS}::test_behind_a_shut_gate_the_critics_learn_from_the_real_rows_alone"
UNSEEN = f"{ROWS}::test_everything_but_the_critic_learns_from_the_batch_as_it_was_sampled"
THROUGH_CRITIC = f"{ROWS}::test_the_actor_depends_on_imagined_rows_through_the_critic_alone"
WEIGHTED = f"{ROWS}::test_the_loss_is_the_weighted_mean_of_the_rows"

CORE = [
    # ------------------------------------------------------------ targets
    m("gamma around the reward as well", "bellman", "_b._r + _b._d * _f(_v)", "_b._d * (_b._r + _f(_v))", SAC),
    m("gain outside gamma's bracket", TARGET,
      "_f(_l.next_z, _a)[0]", "_f(_l.next_z, _a)[0] / jnp.maximum(_bs[0].discount, 1e-3)", MAXINFO,
      given="_bs = _o.backups(_s, _b, _h)"),
    m("gain of the state instead of the next one", TARGET, "_f(_l.next_z, _a)", "_f(_l.z, _a)", MAXINFO),
    m("entropy missing in the target", "ActorCritic.shift", "_v - _t * _x if _c else _v", "_v", SAC),
    m("maximum of the target critics", "Scalar.combine", "_q.min(1)", "_q.max(1)", SAC),
    m("target from the online critics", "ActorCritic.next_outputs",
      "_s.params._c if _x else _s.target._c", "_s.params._c", SAC),
    m("target action from the target policy", "ActorCritic.successor",
      "_pi(_s._p._a, _i, _t)", "_pi(_s.target._a, _i, _t)", SAC),
    m("gradient through the target", TARGET, "stop_gradient(_x)", "_x", f"{LEARNER}::test_targets_are_constants"),
    m("loss summed over critics", "CriticRows.mean", "_e.mean((1, 2)).sum()", "_e.mean(2).sum()", SAC),
    # ------------------------------------------------------------ target networks
    m("stale target critic", CRITIC, "replace(_s._t, _k=_f(_o, _n, _tau))", "_s._t", SAC),
    m("target critic lags one update more", CRITIC,
      "replace(_s._t, _k=_f(_o, _n, _tau))", "replace(_s._t, _k=_f(_o, _s.params._k, _tau))", SAC),
    m("stale target policy", "ActorCritic.with_actor", "replace(_s._t, _k=_f(_o, _n, _tau))", "_s._t", MAXINFO),
    m("tau on the wrong side", "polyak", "(1 - _t) * _a + _t * _b", "_t * _a + (1 - _t) * _b",
      f"{PARTS}::test_polyak_moves_the_target_by_tau"),
    # ------------------------------------------------------------ improvement
    m("actor reads the target critics", ACTOR, "_q(_s._p._c, _f, _a, _k, _t)", "_q(_s.target._c, _f, _a, _k, _t)",
      SAC),
    m("actor reads the mean", "ActorCritic.reduce_critics", "_q.min(1) if _c else _q.mean(1)", "_q.mean(1)", SAC),
    m("entropy's sign in the actor", ACTOR, "_o - _w[_i] * _t * _lp", "_o + _w[_i] * _t * _lp", SAC),
    m("no gradient through the gain", ACTOR, "_o = _o + _b", "_o = _o + stop_gradient(_b)", MAXINFO),
    m("target entropy's sign", ACTOR, "_e * _b._a.shape[-1]", "-_e * _b._a.shape[-1]", SAC),
    m("behaviour without noise", "ActorCritic.act", "_p._act(_out, _key, _f(_s, _c, _u), _n)", "_p.mode(_out)",
      f"{LEARNER}::test_acting_samples_the_policy"),
    # ------------------------------------------------------------ order of one update
    m("model before actor", "update",
      "_s, _m = _f(_s) if _c else _d\n_s, _n = _a._g(_s, _l)",
      "_s, _n = _a._g(_s, _l)\n_s, _m = _f(_s) if _c else _d", MAXINFO),
    m("actor before critic", "update",
      "_s, _m, _l, _b, _t = _e(_s, _last, _i)\n_f = _g\n_d = _x\n_s, _n = _y",
      "_, _m, _l, _b, _t = _e(_s, _last, _i)\n_f = _g\n_d = _x\n_s, _n = _y\n_s = _e(_s, _last, _i)[0]", SAC),
    m("model trained once per round", "update", "return _a._f(_s, _l)[0], None", "return _s, None", ROUND),
    m("one key for all critic steps of a round", "update",
      "_f(_s, _b, jax.random.fold_in(_k, _i), _t)", "_f(_s, _b, jax.random.fold_in(_k, 0), _t)", ROUND),
    m("one batch for all rounds", "StepFunctions.sample_round",
      "_b = jax.random.fold_in(_k, _i)", "_b = _k", f"{LAWS}::test_scanned_updates_are_single_ones"),
    # ------------------------------------------------------------ prior data
    m("prior rows on top of a whole batch", "StepFunctions.sample_round", "_a - _b", "_a",
      f"{PRIOR}::test_every_batch_has_exactly_its_share"),
    m("both parts of a batch from one draw", "StepFunctions.sample_round",
      "_f(_s.prior, _k, _n)", "_f(_s.replay, _k, _n)", f"{PRIOR}::test_every_batch_has_exactly_its_share"),
    m("terminals of prior data bootstrap", "Prior.ends", "np.where(_t, TERMINATED, _o)", "np.where(_t, TRUNCATED, _o)",
      f"{PRIOR}::test_terminal_rows_do_not_bootstrap_and_time_outs_do"),
    m("successors of ends are lost", "as_replay", "_o.next_obs[_e]", "_o.obs[_e]",
      f"{PRIOR}::test_returns_are_those_of_the_same_episodes_stepped_live"),
    m("returns of the prior run over its ends", "Program.observe_prior", "jnp.where(_e, 0.0, _t)", "_t",
      f"{PRIOR}::test_statistics_begin_with_those_of_the_prior_data"),
    m("any prior data will do on resume", "check_prior", "_k != {_t.prior_digest}", "False",
      f"{PRIOR}::test_a_run_goes_on_only_with_the_data_it_began_with"),
    m("episodes that are only apart run on", "Prior.ends", "_a | _b.truncated", "_b.truncated",
      f"{PRIOR}::test_an_episode_ends_where_the_next_row_does_not_go_on"),
    m("time-out rows with another episode's successor", "flat_columns", "_t | ~_u", "_t | _t",
      f"{PRIOR}::test_d4rl_without_successors_drops_time_outs_and_keeps_terminals"),
    m("learn first, insert later", "StepFunctions.train_step",
      "_s, _m = _f(_g(_s, _t))", "_s, _m = _f(_s)\n_s = _g(_s, _t)",
      f"{LAWS}::test_a_step_inserts_then_learns_then_acts"),
    m("the same noise at every step", "StepFunctions.select_action",
      "jax.random.fold_in(_f(_a, _b, _c), 0)", "jax.random.fold_in(_f(_a, _b, 0), 0)",
      f"{LAWS}::test_clocks_metrics_and_warm_up"),
    # ------------------------------------------------------------ parts
    m("a multiplier's sign", "Tuned.step", "jnp.mean(_v) - jnp.mean(_t)", "jnp.mean(_t) - jnp.mean(_v)",
      f"{PARTS}::test_a_multiplier_falls_while_its_value_is_above_the_target"),
    m("a multiplier's gradient times its value", "Tuned.step",
      "_f(_o, _g, _m._s, _m._l)", "_f(_o, _g * jnp.exp(_m._l), _m._s, _m._l)",
      f"{PARTS}::test_the_gradient_of_a_multiplier_is_the_slack_itself"),
    m("a multiplier without bounds", "Tuned.value", "jnp.exp(jnp.clip(_x, _a, _b))", "jnp.exp(_x)",
      f"{PARTS}::test_a_multiplier_is_clipped_in_value_and_not_in_gradient"),
    m("log-probability without the tanh", "SquashedGaussian.at_noise", "(_a - _b).sum(-1)", "_a.sum(-1)",
      f"{PARTS}::test_log_probability_is_that_of_the_squashed_gaussian"),
    m("noise of a deterministic policy not clipped", "NoisyDeterministic.sample",
      "_n = jnp.clip(_x, _a, _b)", "_n = _x", CLIPPED),
    m("no gradient where the action saturates", "NoisyDeterministic.sample",
      "_a + stop_gradient(jnp.clip(_a, -1, 1) - _a)", "jnp.clip(_a, -1, 1)", CLIPPED),
    m("statistics pass a gradient", "Normalizer.__call__",
      "(_x - stop_gradient(_m)) / stop_gradient(_s)", "(_x - _m) / _s",
      f"{PARTS}::test_statistics_are_constants_to_every_gradient"),
    m("statistics forget that the mean moved", "Normalizer.update", "_a**2 + (_b - _c) ** 2", "_a**2",
      f"{PARTS}::test_normalizer_equals_the_statistics_of_everything_seen"),
    m("no floor under the deviation", "Normalizer.update", "jnp.maximum(_x, _f)", "_x",
      f"{PARTS}::test_normalizer_floor_and_cap"),
    # ------------------------------------------------------------ replay
    m("termination bootstraps", BACKUP, "return _f(_r, _d * _b, _o)", "return _f(_r, _d, _o)", REPLAY),
    m("truncation does not bootstrap", BACKUP, "_b = _e != _t", "_b = _e == 0", REPLAY),
    m("n-step returns run past a truncation", BACKUP, "_g & (_e == 0) & _n", "_g & (_e != TERMINATED) & _n", REPLAY),
    m("n-step returns run past the newest transition", BACKUP, "_g & (_r + _j != _n)", "_g", REPLAY),
    m("gamma**n even where fewer rewards were summed", BACKUP, "jnp.where(_g, _d * _y, _d)", "_d * _y", REPLAY),
    m("rewards not discounted within the return", BACKUP, "jnp.where(_g, _d * _r, 0)", "jnp.where(_g, _r, 0)", REPLAY),
    m("bootstrap from the state itself", BACKUP, "_f(_l, _r + 1)", "_f(_l, _r)", REPLAY),
    m("a start leaves one row late", "Replay.add", "_h - _r + _s - 1", "_h - _r + _s - 2", REPLAY),
    m("a start leaves one row early", "Replay.add", "_h - _r + _s - 1", "_h - _r + _s", REPLAY),
    m("the last observation gives way to the next first", "Replay.add",
      "jnp.where(_v, 1 + _o, _c)", "jnp.where(_v, 1, _c)", REPLAY),
    m("an episode that was cut goes on", "Replay.add", "(_b, TRUNCATED, _c)", "(_b, 0, _c)", REPLAY),
    m("writing a row copies its column", "_put", "(*_w, _n) if len(_w) == 1 else _w", "_w",
      f"{REPLAY}::test_a_step_copies_no_column"),
    m("resets count as transitions", "Replay.add", "_r._p + _t._v", "_r._p + 1", REPLAY),
    m("the newest transition is never drawn", "Replay.draw", "jnp.maximum(_b, 1)", "jnp.maximum(_b - 1, 1)", REPLAY),
    m("frame stacks cross a reset", "Replay.stacked", "jnp.minimum(_x, _a)", "_x", REPLAY),
    # ------------------------------------------------------------ modern bases
    m("rows of norm 1", "unit_columns",
      "jnp.linalg.norm(_w, axis=-2, _k=True)", "jnp.linalg.norm(_w, axis=-1, _k=True)",
      f"{PIECES}::test_columns_of_norm_1_leave_a_network_in_training_as_it_was_and_are_held_after_every_step"),
    m("critics never projected", CRITIC, "replace(_c, _h=_n.project(_c._h))", "_c", XQC),
    m("actor never projected", ACTOR, "replace(_a, _h=_n.project(_a._h))", "_a", XQC),
    m("successors in a pass of their own", CRITIC,
      "_f(_c, _s.stats._x, _i, _a, _k, _j)", "_f(_c, _s.stats._x, _i, _a, _k)",
      XQC),
    m("the target's pass without the batch", "ActorCritic.next_outputs",
      "_f(_c, _t, _i, _b._a, _k, _j)[0][:, :, _n:]",
      "_f(_c, _t, _j.inputs, _j.action, _k, _j)[0][:, :, _n:]", XQC),
    m("critics' statistics stay", CRITIC, "replace(_s.stats, _c=_x)", "_s.stats", XQC),
    m("a delay that begins with an actor step", "delayed", "(_n._u + 1) % _d == 0", "_n._u % _d == 0",
      f"{BASES}::test_the_actor_waits_for_every_third_update_across_steps"),
    m("quantile loss sums over targets", "quantile_huber", "_x.sum(-2).mean(-1)", "_x.sum(-1).mean(-1)",
      f"{PIECES}::test_quantile_loss_sums_over_predictions_and_averages_over_targets"),
    m("quantiles the wrong way round", "quantile_huber", "_t - (_d < 0)", "_t - (_d > 0)",
      f"{PIECES}::test_quantile_loss_sums_over_predictions_and_averages_over_targets"),
    m("the distribution of the larger mean", "smallest", "_m.argmin(1)", "_m.argmax(1)", XQC),
    m("a reset forgets what was observed", "ActorCritic.begin_afresh", "replace(_l, _o=_s._o)", "_l", AFRESH),
    m("a reset one transition late", "ActorCritic.reset_due",
      "(_b < _a) & (_a <= _c)", "(_b <= _a) & (_a < _c)", AFRESH),
    m("statistics of where a step led", "StepFunctions.observe", "_f(_s._a, _t.obs)", "_f(_s._a, _t.next_obs)", SEEN),
    m("statistics of what came before", "StepFunctions.insert", "return _x.observe(_s, _t, _e)", "return _s", SEEN),
    m("the last reward in the next episode", "StepFunctions.observe",
      "_g * _s.sums + _t.reward", "_g * _s.sums * ~_t.terminated + _t.reward", SEEN),
    m("rewards divided without a bound", "ReturnScale.divisor", "jnp.maximum(_a, _b)", "_a", XQC),
]  # fmt: skip

GAIN = f"{INTRINSIC}::test_information_gain_of_a_case_made_by_hand"
APART = f"{INTRINSIC}::test_disagreement_of_a_case_made_by_hand"
MAXINFO_ACTOR, MAXINFO_CRITIC = "MaxInfo.actor_step", "MaxInfo.critic_step"
DROPOUT = f"{LEARNER}::test_dropout_follows_its_key_in_values_and_targets"

ALGORITHMS = [
    # ------------------------------------------------------------ information gain and its relatives
    m("variance over the batch", "variance",
      "(_x - _y).var(0, _k=_d)", "jnp.broadcast_to((_x - _y).var(1, _k=_d).mean(0), _x.shape[1:])", GAIN, MAXINFO),
    m("sample variance in the information gain", "InfoGain.score",
      "jnp.log1p(_f(_m) / _n)", "jnp.log1p(_f(_m, 1) / _n)", GAIN),
    m("noise not squared", "InfoGain.score", "_n**2 if _c else _x", "_n if _c else _x", GAIN),
    m("population deviation in the disagreement", "member_std", "_f(_x, _k=1)", "_f(_x)", APART),
    m("a square root without a gradient at 0", "member_std", "jnp.sqrt(jnp.where(_c, _x, 1.0))", "jnp.sqrt(_x)",
      f"{INTRINSIC}::test_members_that_agree_score_zero_with_a_finite_gradient"),
    m("gradient into the model that is asked", "Ensemble.outcome", "stop_gradient(_x)", "_x",
      f"{INTRINSIC}::test_a_model_is_a_constant_to_those_who_ask_it"),
    m("targets normalised with the statistics before", "Ensemble.update",
      "_f(_m._e, _i(_x), _n, _b)", "_f(_m._e, _m.inputs(_x), _n, _b)",
      f"{INTRINSIC}::test_statistics_contain_the_batch_before_it_is_normalised"),
    m("the model predicts the next state", "successor", "[_e.next_z - _e.z]", "[_e.next_z]",
      f"{INTRINSIC}::test_targets_of_states_and_of_latents"),
    m("blocks weigh by their width", "block_means", "_p.mean(-1)", "_p.sum(-1)", APART),
    m("learned noise that likes to be large", "Ensemble.loss", "_e + jnp.log(_s)", "_e - jnp.log(_s)",
      f"{INTRINSIC}::test_learned_noise_is_trained_by_the_likelihood"),
    m("curiosity in raw units", "Curiosity.reward", "jnp.square(_m - _f(_t))", "jnp.square(_m - _t)",
      f"{INTRINSIC}::test_curiosity_of_a_case_made_by_hand"),
    m("the random network is trained", "Ensemble.update",
      "replace(_m, members=_n, **__k)",
      "replace(_m, frozen=jax.tree.map(lambda x: 0.999 * x, _m.frozen), members=_n, **__k)",
      f"{INTRINSIC}::test_the_random_network_is_never_trained_and_its_predictors_come_to_agree"),
    # ------------------------------------------------------------ MaxInfo
    m("the actor standardises with old statistics", MAXINFO_ACTOR,
      "(_w * _n(_r), (_n, _r))", "(_w * _s._scale(_r), (_n, _r))", MAXINFO, given="_n = _s._scale._f(_x)"),
    m("statistics without the target policy's gains", MAXINFO_ACTOR,
      "_f(jnp.concatenate([_r, _t]))", "_f(_r)", MAXINFO),
    m("the critic's gain is not standardised", MAXINFO_CRITIC,
      "_w * _f(_g(_m, _z, _a))", "_w * _g(_m, _z, _a)", MAXINFO),
    m("the target policy shares the policy's noise", MAXINFO_ACTOR,
      "jax.random.fold_in(_k, TARGET_POLICY)", "jax.random.split(_k)[0]",
      f"{LEARNER}::test_target_policy_and_policy_draw_their_own_noise"),
    m("paired noise is noise of its own", MAXINFO_ACTOR, "actor_keys(_k)[0]", "actor_keys(_k)[1]",
      f"{EXPLORERS}::test_paired_noise_leaves_nothing_to_compare_where_policy_and_copy_are_alike"),
    m("the explorer's reward stays raw", "Switch.critic_step", "_s._scale(_r) if _n else _r", "_r",
      f"{EXPLORERS}::test_an_explorer_is_given_the_normalised_reward_and_one_setting_gives_the_raw_one"),
    m("the memory of a normaliser is endless", "Normalizer.update", "jnp.minimum(_c, _m)", "_c",
      f"{EXPLORERS}::test_statistics_remember_as_many_points_as_they_say"),
    m("scaling centres all the same", "Normalizer.__call__", "_x / stop_gradient(_o._std)",
      "(_x - _o.mean) / stop_gradient(_o._std)",
      f"{EXPLORERS}::test_statistics_remember_as_many_points_as_they_say", nth=0),
    m("targets are never clipped", "Ensemble.update", "jnp.clip(_y, _a, _b)", "_y",
      f"{EXPLORERS}::test_targets_are_clipped_only_where_asked"),
    m("correlated noise goes on over the end of an episode", "CorrelatedNoise.advance", "jnp.where(_e, _f, _g)", "_g",
      f"{EXPLORERS}::test_noise_starts_afresh_where_an_episode_ended_and_lanes_are_independent"),
    m("the edge costs nothing", ACTOR, "_o - _s.policy.edge * _x", "_o",
      f"{EXPLORERS}::test_a_saturated_deterministic_actor_comes_back_from_the_edge"),
    m("correlated noise grows", "CorrelatedNoise.advance", "jnp.sqrt(1 - _d**2) * _f", "_f",
      f"{EXPLORERS}::test_pink_noise_has_its_spectrum_and_unit_variance"),
    m("the explorer starts warm", "Switch.init", "_o.explorer.init(_k, _s)", "_o.base.init(_k, _s)",
      f"{EXPLORERS}::test_an_explorer_starts_cold_and_the_task_does_not"),
    m("the base's key does not pass untouched", MAXINFO_CRITIC,
      "_f(_l, _b, _k, _c, _s)", "_f(_l, _b, jax.random.fold_in(_k, 9), _c, _s)",
      f"{LAWS}::test_maxinfo_without_weight_is_sac_bit_for_bit"),
    m("alpha2's sign", MAXINFO_ACTOR, "_f(_s._w, _n(_r), _h)", "_f(_s._w, _h, _n(_r))",
      f"{LEARNER}::test_alpha2_rises_iff_the_policy_gathers_less_than_the_target_policy"),
    m("mask on the gain's own critic", MAXINFO_CRITIC, "_a if _c else _b", "_a",
      f"{REFERENCE}::test_maxinfo_on_an_nstep_base_keeps_the_gain_in_its_own_critic"),
    # ------------------------------------------------------------ DroQ and DDPG
    m("targets without dropout", "ActorCritic.next_outputs",
      "_f(_c, _t, _x, _a, _k)", "_f(_c, _t, _x, _a, None)", DROPOUT),
    m("one dropout for all critics", "ActorCritic.evaluate",
      "jax.random.split(_k, _n)", "jnp.stack([_k] * _n)", DROPOUT),
    m("DDPG with DrQv2's clip", "BASES", "_p(_c=0.5)", "_p(_c=0.3)", f"{LEARNER}::test_the_papers_numbers"),
    # ------------------------------------------------------------ REDQ and OAC
    m("a subset of two equal critics", TARGET,
      "jax.random.choice(_k, _n, _x, replace=False)", "jax.random.choice(_k, _n, _x, replace=True)",
      f"{LEARNER}::test_two_distinct_target_critics_per_update"),
    m("optimism's norm over the batch", "Optimism.__call__", "_x.sum(-1, keepdims=True)", "_x.sum()",
      f"{PARTS}::test_optimism_treats_rows_independently_and_is_nothing_without_cause"),
    m("optimism without the variance", "Optimism.__call__", "_c * _v * _g / _n", "_c * _g / _n",
      f"{PARTS}::test_optimism_shifts_by_a_fixed_divergence"),
    m("optimism that fears the spread", "Optimism.__call__", "_q.mean(0) + _b", "_q.mean(0) - _b",
      f"{PARTS}::test_optimism_follows_the_upper_bound"),
    m("optimism in evaluation", "ActorCritic.act",
      "if not _e:\n    return _m\nif _o is not None:\n    _x = _y",
      "if _o is not None:\n    _x = _y\nif not _e:\n    return _m",
      f"{LEARNER}::test_evaluation_is_tanh_of_the_mean_and_draws_nothing"),
    # ------------------------------------------------------------ intrinsic sum and EIPO
    m("lambda's sign", "Eipo.actor_step", "_f(_w, _a._v[0], _b._v[0])", "_f(_w, _b._v[0], _a._v[0])",
      f"{EXPLORE}::test_lambda_holds_the_task_value_at_the_greedy_agents"),
    m("lambda multiplies the intrinsic value", "IntrinsicSum.shaping", "(1.0, 1.0 / _w)", "(1.0, _w)", EIPO),
    m("mask on the intrinsic critic", "IntrinsicSum.shaping", "_b._n._replace(_k=_r)", "_b.one._replace(_k=_r)", SUM),
    m("entropy on the task's channel", "IntrinsicSum.shaping", "_f(_b, _w, _k=1)", "_f(_b, _w, _k=0)", SUM),
    m("the greedy agent has entropy", "GREEDY", "_f(_k=None)", "_f()", EIPO),
    m("the greedy agent acts", "EipoState.learner", "_s._m._l", "_s.greedy",
      f"{EXPLORE}::test_the_greedy_agent_has_no_entropy_and_never_acts"),
    m("the intrinsic reward's statistics updated before use", "IntrinsicSum.critic_step",
      "_s._n(_r(_l))", "_s._n.update(_r(_l))(_r(_l))", SUM),
    m("statistics of standardised rewards", "IntrinsicSum.critic_step", "_s._n._f(_r)", "_s._n._f(_s._n(_r))", SUM),
    # ------------------------------------------------------------ switch
    m("a switch inside a round", "Switch.exploring", "_c // _p", "_c // (_p // 2 + 1)",
      f"{EXPLORE}::test_the_mode_is_constant_within_a_round"),
    m("epsilon below zero", "Epsilon.__call__", "jnp.maximum(0.0, _x)", "jnp.maximum(-9.0, _x)",
      f"{EXPLORE}::test_epsilon_falls_linearly_and_stops_at_zero"),
    m("explore one step longer", "Then.__call__", "_a > _b", "_a >= _b",
      f"{EXPLORE}::test_explore_then_exploit_switches_once_at_a_quarter"),
    m("the curious agent never ends", "Switch.critic_step",
      "_b._o._replace(_k=_r)", "_b.non_episodic._replace(_k=_r)", SWITCH),
    m("the curious agent learns the task", "Switch.critic_step", "_b._o._replace(_k=_r)", "_b._o",
      f"{EXPLORE}::test_the_curious_agent_knows_nothing_of_the_reward"),
    m("the curious agent is evaluated", "Switch.act", "if not _e:\n    return _t", "pass",
      f"{EXPLORE}::test_who_acts_is_who_the_schedule_says"),
]  # fmt: skip

ENCODER, SEEING, DRM, PRODUCT, FRAMES, PROBE = (
    f"tests/test_pixels_{n}.py" for n in ("encoder", "learner", "drm", "product", "replay", "probe")
)
FEATURES = f"{ENCODER}::test_features_are_four_convolutions_in_nhwc_order"
PROJECTION = f"{ENCODER}::test_projection_is_dense_layer_norm_tanh_with_lecun_weights"
SLOPES = f"{ENCODER}::test_gradients_of_the_convolution_are_those_of_jax"
VIEWS = f"{ENCODER}::test_every_image_of_a_batch_is_shifted_on_its_own"
CROP = f"{ENCODER}::test_a_shift_is_a_crop_of_the_image_padded_with_its_border"
LATENTS = f"{SEEING}::test_latents_come_through_the_target_trunk_of_the_augmented_batch"
COUNTED = f"{DRM}::test_the_ratio_counts_neurons_zeroed_by_hand"
WAKING = f"{DRM}::test_waking_latches_and_not_before_step_2000"
PASSES = f"{PRODUCT}::test_an_update_encodes_as_few_images_as_the_algorithm_allows"
STACKED = f"{FRAMES}::test_evaluation_stacks_as_the_replay_does"
DORMANT = "ActorCritic.perturb_dormant"

PIXELS = [
    # ------------------------------------------------------------ the encoder
    m("the critic's loss does not train the encoder", CRITIC, "(*_f(_g), _c)", "(*_f(0 * _g), _c)",
      "tests/test_pixels_learner.py"),
    m("images in slices out of order", "in_slices", "jax.lax.map(_f, _x)", "jax.lax.map(_f, _x[::-1])", FEATURES),
    m("convolutions without padding", "in_turn", "partial(_f, spare=1)", "partial(_f, spare=0)",
      f"{ENCODER}::test_convolutions_keep_the_layout_that_is_quick_in_a_loop"),
    m("the spare column kept", "_windows", "_x[:, :, : _x.shape[2] - _s]", "_x", FEATURES),
    m("images from 0 to 255", "_features", "_x / 255", "_x", FEATURES),
    m("every convolution has stride 1", "STRIDES", "(2, 1, 1, 1)", "(1, 1, 1, 1)",
      f"{ENCODER}::test_width_of_the_features"),
    m("a convolution's bias forgotten", "_features", "_c + _l._b", "_c", FEATURES),
    m("no ReLU", "_features", "jax.nn.relu(_x)", "_x", FEATURES),
    m("no tanh after the projection", "Projection.__call__", "jnp.tanh(_x)", "_x", PROJECTION),
    m("an orthogonal projection", "Projection.__init__", '_f(_k, _w, _l, init="lecun")', "_f(_k, _w, _l)", PROJECTION),
    m("one shift for a whole batch", "shifted", "jax.random.randint(_k, (2, _n, 1), _a, _b)",
      "jnp.broadcast_to(jax.random.randint(_k, (2, 1, 1), _a, _b), (2, _n, 1))", VIEWS),
    m("shifts of at most 3", "shifted",
      "jax.random.randint(_k, _n, -_a, _a + 1)", "jax.random.randint(_k, _n, 1 - _a, _a)", CROP),
    m("the picture wraps around", "shifted", "jnp.clip(_x, 0, _n - 1)", "_x % _n", CROP, nth=0),
    m("observation and successor shifted alike", "Pixels.augment",
      "_b._replace(_a=_f(_x, _k), _c=_g(_y, _l), **__r)", "_b._replace(_a=_f(_x, _k), _c=_g(_y, _k), **__r)", VIEWS),
    m("the n-step observation not shifted", "Pixels.augment",
      "None if _c else _f(_x, _k)", "None if _c else _x", VIEWS),
    m("channels pooled by default", "Pixels.extra",
      "_f.reshape(*_l, _e, -1).max(-1)", "_f.reshape(*_l, -1, _e).max(-2)",
      f"{ENCODER}::test_the_embedding_is_a_maximum_over_windows"),
    m("latents as differences", "Pixels.latents", "_f(_z, _a, _e, _k=False, _v=_w)", "_f(_z, _a, _e, _k=True, _v=_w)",
      f"{ENCODER}::test_latents_are_absolute_and_83_wide_with_embedding_and_reward"),
    m("a kernel not turned in the gradient", "_convolve_bwd", "_w[::-1, ::-1]", "_w", SLOPES),
    m("rows no window reaches get a gradient", "_convolve_bwd", "_k - 1 + _m", "_k - 1", SLOPES),
    m("JAX's own gradients", "_features", "_f(_x, _l._w, _s)",
      'jax.lax.conv_general_dilated(_x, _l._w, (_s, _s), "VALID", dimension_numbers=LAYOUT)',
      f"{ENCODER}::test_convolutions_keep_the_layout_that_is_quick_in_a_loop"),
    m("float images", "Pixels.features", "_o.dtype != jnp.uint8", "False",
      f"{ENCODER}::test_what_cannot_be_encoded_is_refused_with_a_sentence"),
    m("a blind encoder", "_features", "return _x", "return 0 * _x", PROBE),
    # ------------------------------------------------------------ one encoder, latents, two critics
    m("the actor trains the convolutions", ACTOR, "stop_gradient(_f(_s, _o))", "_f(_s, _o)",
      f"{SEEING}::test_the_actors_loss_gives_no_gradient_to_the_convolutions"),
    m("z through the online trunk", "ActorCritic.latents", "_f(_s._t._c._k, _x)", "_f(_s.params._c._k, _x)", LATENTS,
      nth=0),
    m("the model predicts n steps on", "ActorCritic.latents",
      "_f(_s, _b.one.next_obs)", "_f(_s, _b.task.next_obs)", LATENTS),
    m("both critics' next actions share their noise", TARGET,
      "_f(_s, _o, _g(_k, _c), _g(_d, _c))", "_f(_s, _o, _k, _g(_d, _c))",
      f"{SEEING}::test_next_actions_of_the_two_critics_have_their_own_noise"),
    m("the gain itself in the n-step actor", MAXINFO_ACTOR,
      "_f(_n, _w) if _c else _f(_k=_b)", "_f(_n, _w, _k=_b) if _c else _f(_k=_b)",
      f"{SEEING}::test_the_gain_itself_gives_drqv2s_actor_no_gradient"),
    m("the gain's critic without its weight", MAXINFO_ACTOR, "_f(_n, (1.0, _w))", "_f(_n, (1.0, 1.0))",
      f"{SEEING}::test_the_actor_maximises_both_critics_by_their_weight"),
    m("an image encoded once more than needed", "ActorCritic.target_action",
      "_p(_a, _i(_s, _f(_s, _o)), _t)", "_p(_a, _i(_s, _f(_s, _o[::-1])[::-1]), _t)", PASSES),
    m("a schedule that is over early", "NOISES", "_f(1.0, 0.1, 500_000)", "_f(1.0, 0.1, 100_000)",
      f"{SEEING}::test_schedules_have_their_ends_and_stay_there"),
    m("wider noise in updates", "DRQV2", "_p(_c=0.3)", "_p(_c=0.5)",
      f"{SEEING}::test_noise_of_updates_is_clipped_and_that_of_acting_is_not"),
    m("falling noise beside the gain", "TWEAKS", 'replace(_b["drqv2"], **__k)', '_b["drqv2"]',
      f"{SEEING}::test_the_information_gain_replaces_the_falling_noise"),
    # ------------------------------------------------------------ dormant neurons
    m("dormant against a fixed level", "Dormant.ratio", "_l < _t * _l.mean()", "_l < _t",
      f"{DRM}::test_a_neuron_is_dormant_below_a_share_of_its_own_layer"),
    m("the projection's neurons not counted", DORMANT, "(*_a, *_b, _c)", "(*_b, _c)", COUNTED),
    m("a hidden layer not counted", DORMANT, "_h(_z)[1:]", "_h(_z)[2:]", COUNTED),
    m("awake too early", "Dormant.observe", "_a & (_u >= _b)", "_a", WAKING),
    m("waking anew", "Dormant.observe", "(_v == _a) & (_r < _t)", "_r < _t", WAKING),
    m("the smaller of ratio and schedule", "Dormant.sigma", "jnp.maximum(_a, _b)", "jnp.minimum(_a, _b)",
      f"{DRM}::test_noise_follows_the_ratio_until_the_actor_wakes"),
    m("the schedule always global", "Dormant.sigma", "_u - _a if _c else _u", "_u",
      f"{DRM}::test_the_schedule_may_start_when_the_actor_wakes"),
    m("acting with the updates' noise", "ActorCritic.act", '_f(_s, _c, "acting")', "_f(_s, _c)",
      f"{DRM}::test_where_the_noise_follows_the_ratio"),
    m("more dormant, more kept", "Dormant.kappa", "1 - _f * _r", "_f * _r", f"{DRM}::test_how_much_is_kept"),
    m("a perturbation one update late", "Dormant.due", "(_u + 1) % _e", "_u % _e", f"{DRM}::test_only_on_multiples"),
    m("layer norms and convolutions perturbed", "perturbed", "_a if _c else _b", "_a",
      f"{DRM}::test_keeping_all_changes_nothing_and_keeping_nothing_starts_anew"),
    m("target networks get the same fresh draws", DORMANT,
      "(_f(_s._p, _n._p, _k), _f(_s._t, _o._t, _k))", "(_f(_s._p, _n._p, _k), _f(_s._t, _n._t, _k))",
      f"{DRM}::test_fresh_draws_are_independent_in_every_network"),
    m("target networks not perturbed", DORMANT,
      "(_f(_s._p, _n._p, _k), _f(_s._t, _o._t, _k))", "(_f(_s._p, _n._p, _k), _s._t)",
      f"{DRM}::test_dense_layers_of_every_network_are_drawn_towards_fresh_ones"),
    m("the actor's optimiser goes on", DORMANT,
      "replace(_s, _a=_b, _c=_d, _v=_n._v, _w=_n._w)", "replace(_s, _a=_b, _c=_d, _v=_n._v)",
      f"{DRM}::test_optimisers_start_anew"),
    m("networks initialised at every update", DORMANT, "jax.lax.cond(_d, _f, _g, _s)",
      "jax.tree.map(lambda a, b: jnp.where(_d, a, b), _f(_s), _s)",
      f"{DRM}::test_a_perturbation_stays_conditional_when_seeds_are_mapped"),
    # ------------------------------------------------------------ frames once
    m("adding copies the buffer", "Replay.add", "_f(_r._o, (_a, _t._n, _v), (_w, _t._p, _x))",
      "jnp.where(_t.valid.all(), _f(_r._o, (_a, _t._n, _v), (_w, _t._p, _x)), _r._o)",
      f"{FRAMES}::test_adding_writes_in_place"),
    m("the newest stack crosses a reset", "Replay.add",
      "_f(_r, (_a, _g + 1, _v), (_n, 0, _w))", "_f(_r, (_a, _g + 1, _v), (_n, _g + 1, _w))",
      f"{FRAMES}::test_a_stack_never_crosses_a_reset"),
    m("evaluation stacks the newest frame first", "Stack.push",
      "np.concatenate([_f[_l][..., _c:], _n], -1)", "np.concatenate([_n, _f[_l][..., :-_c]], -1)", STACKED),
    m("evaluation keeps old frames over a reset", "Stack.fill",
      "_s._f[_l] = np.concatenate([_n] * _k, -1)", "_s.push(_l, _n)", STACKED),
]  # fmt: skip

IMAGINED = [
    # ------------------------------------------------------------ rows that the ensemble imagines
    m("the replayed action in place of a fresh one", "with_imagined",
      "with_last(_b.action, _a)", "_b.action", PERFECT),
    m("one step with the discount of several", "with_imagined",
      "_b.gamma[-_n:]", "_b.task.discount[-_n:]", PERFECT),
    m("n-step rows keep their real returns", "with_imagined", "None if _b is None else _f(_b)", "_b", PERFECT),
    m("critics learn from the sampled rows", CRITIC, "_r.batch.action", "_b.action", PERFECT,
      given="_l = _s.latents(_self, _b, _f)"),
    m("the actor and the model see imagined rows", CRITIC,
      "(_s, _m | _r.metrics, _l)", "(_s, _m | _r.metrics, _r.latents)", UNSEEN, THROUGH_CRITIC),
    m("imagined rows in the metrics", CRITIC, "_raw[:, :, : _r.real]", "_raw", SHUT),
    m("divided by all rows", "CriticRows.mean", "(_w * _l).sum(2) / _w.sum(2)", "(_w * _l).mean(2)", WEIGHTED, SHUT),
    m("weights left out", "CriticRows.mean", "(_w * _l).sum(2)", "_l.sum(2)", WEIGHTED, SHUT),
    m("rows count though the episode ended", "row_weights", "jnp.where(_e, 0.0, _w)", "_w", LEFT_OUT),
    m("imagined rows in an intrinsic channel", "row_weights", "jnp.zeros_like(_w)", "_w", LEFT_OUT),
    m("a bonus beyond the real ones", "shaping_of", "jnp.clip(_v, _low, _high)", "_v", BEYOND),
    m("own successors in place of shared ones", "shaping_of",
      "_o.next_obs is _b.task.next_obs", "_o.next_obs is not _b.task.next_obs", PERFECT),
    m("a reward beyond the real ones", "Ensemble.imagination", "jnp.clip(_r, *_x)", "_r", BEYOND),
    m("the change as the next state", "Ensemble.imagination", "_z + _c", "_c", PERFECT),
    m("one member in place of their mean", "Ensemble.imagination", "_m.mean(0)", "_m[0] * 0.9", PERFECT),
    m("normalised outputs as they are", "Normalizer.inverse", "_x * stop_gradient(_s)", "_x", PERFECT),
    m("no start", "ModelRows.weight", "_u >= _s.start", "_u >= 0", GATES),
    m("the state's error alone", "ModelRows.weight", "(_e <= _m).all()", "(_e <= _m)[0]", GATES),
    m("the reward's error alone", "ModelRows.weight", "(_e <= _m).all()", "(_e <= _m)[1]", GATES),
    m("terminations are ignored", "ModelRows.weight", "_r.terminated <= _m", "True", GATES),
    m("disagreement does not gate", "ModelRows.weight", "_u <= _s.most_disagreement", "True", GATES),
    m("disagreement does not weigh", "ModelRows.weight", "1 / (1 + _u)", "jnp.ones_like(_u)", GATES),
    m("the record starts with trust", "TrackRecord.__init__", "jnp.ones(2, _t)", "jnp.zeros(2, _t)", GATES, RECORD),
    m("the record forgets its past", "TrackRecord.after", "MEMORY * _o + (1 - MEMORY) * _n", "_n", RECORD),
    m("the range of the newest rewards alone", "TrackRecord.reward_range",
      "jnp.minimum(_s.low, _r.min())", "_r.min()", RECORD),
    m("a shut gate hides what is not finite", "CriticRows.mean", "_w * _l", "jnp.where(_w > 0, _w * _l, 0.0)",
      f"{ROWS}::test_a_model_that_is_not_finite_is_not_hidden_by_a_gate"),
]  # fmt: skip

MANY_PARTS, DEPLOY = "tests/test_many_parts.py", "tests/test_deploy.py"
ROW, MODELLED, SHIFTED, APART, PASSED = (
    f"{MANY_PARTS}::test_{name}"
    for name in (
        "a_row_of_bytes_holds_every_part_and_is_read_back",
        "models_predict_latents_and_the_change_of_the_vector",
        "images_are_shifted_each_by_its_own_draw_and_vectors_are_not",
        "a_part_for_critics_alone_cannot_change_an_action",
        "predict_keeps_the_frames_that_evaluate_policy_passes_on",
    )
)
PARTED = [
    m("the vector of the oldest frame", "Layout.read", "_f[..., -1, _a:_b]", "_f[..., 0, _a:_b]", ROW),
    m("channels before frames", "stacked_frames", "jnp.moveaxis(_x, -4, -2)", "jnp.moveaxis(_x, -4, -1)", ROW),
    m("the vector predicted as it is", "Pixels.latents", "_f(_z, _a, _e, _k=False, _v=_w)",
      "_f(_z, _a, _e, _k=False, _v=0)", MODELLED),
    m("all images shifted alike", "moved", "map(shifted, _i, _k)", "map(lambda x: shifted(x, _k[0]), _i)", SHIFTED),
    m("the actor sees every number", "Actor.view", "_p.vector[..., :_n]", "_p.vector", APART),
    m("the actor's images are the last ones", "Actor.view", "_i[:_n]", "_i[-_n:]", APART, nth=0),
    m("bytes hide what is not finite", "as_bytes", "not np.isfinite(_a).all()", "False",
      f"{MANY_PARTS}::test_a_number_that_is_not_finite_is_a_fault_although_bytes_hide_it"),
    m("frames of the episode before", "with_before", "np.where(_f, _r, _m)", "_m", PASSED),
    m("no word of a network that is not exported", "why_not_exported", "type(_n).operations is Network.operations",
      "False", f"{DEPLOY}::test_a_network_that_cannot_be_exported_is_told_before_it_trains"),
]  # fmt: skip

MUTATIONS = CORE + ALGORITHMS + PIXELS + IMAGINED + PARTED


def pytest(tests: tuple[str, ...], source: Path) -> tuple[int, str]:
    """Exit code and the end of the output of the tests against the sources in a directory."""
    cache = os.environ.get("MAXINFORL_MUTATION_CACHE", str(Path(tempfile.gettempdir()) / "maxinforl-mutation-cache"))
    more = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "JAX_COMPILATION_CACHE_DIR": cache}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def judge(mutation: Mutation, source: Path) -> str:
    """caught, survived or error; the copy is as it was afterwards."""
    try:
        path = source / "maxinforl" / mutation.file.relative_to(PACKAGE)
        kept = path.read_text()
        path.write_text(ast.unparse(mutation.apply(ast.parse(kept))))
    except LookupError as error:
        return f"error: {error}"
    try:
        code, output = pytest(mutation.tests, source)
    finally:
        path.write_text(kept)
    return {0: "SURVIVED", 1: "caught"}.get(code, f"error: pytest ended with {code}: {output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the mutations to try")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests unchanged")
    asked = parser.parse_args()
    chosen = [(i, x) for i, x in enumerate(MUTATIONS, 1) if asked.only is None or i in asked.only]
    if asked.list:
        for i, x in chosen:
            print(f"{i:3}  {x.where:28} {x.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="maxinforl-mutations-") as directory:
        source = Path(directory)
        shutil.copytree(PACKAGE, source / "maxinforl", ignore=shutil.ignore_patterns("__pycache__"))
        if not asked.no_baseline:
            code, output = pytest(tuple(sorted({t for _, x in chosen for t in x.tests})), source)
            if code != 0:
                print(f"the tests do not pass unchanged:\n{output}")
                return 1
        verdicts = []
        for i, x in chosen:
            began = time.monotonic()
            verdicts.append(judge(x, source))
            print(f"{i:3}  {verdicts[-1]:9} {time.monotonic() - began:5.0f} s  {x.where:28} {x.what}", flush=True)
    caught = verdicts.count("caught")
    print(f"{caught} of {len(verdicts)} caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
