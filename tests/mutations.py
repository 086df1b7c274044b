"""Do the tests bite? Apply one small mistake at a time to a copy of the sources and see whether a test fails.

    python tests/mutations.py                 # all of them (about twenty minutes), a table, exit code 1 if any survives
    python tests/mutations.py --only 3 17     # some of them
    python tests/mutations.py --list

The working tree is never touched. Each mutation names the tests that are expected to catch it. A pattern that no
longer occurs exactly once in its file is an error: the mutation must follow the code (tests/test_mutations.py checks).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "maxinforl"

REFERENCE, LEARNER, EXPLORE, LAWS = (f"tests/test_core_{n}.py" for n in ("reference", "learner", "explore", "laws"))
PARTS, INTRINSIC, REPLAY = (f"tests/test_core_{n}.py" for n in ("parts", "intrinsic", "replay"))
SAC = f"{REFERENCE}::test_sac_update_matches_the_equations"
MAXINFO = f"{REFERENCE}::test_maxinfo_update_matches_the_equations"
SUM = f"{REFERENCE}::test_intrinsic_sum_update_matches_the_equations"
EIPO = f"{REFERENCE}::test_eipo_update_matches_the_equations"
SWITCH = f"{REFERENCE}::test_switch_update_matches_the_equations"


@dataclass(frozen=True)
class Mutation:
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise LookupError(f"'{self.what}': the pattern occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def m(what: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(what, file, old, new, tests)


LEARN = "core/actor_critic.py"

CORE = [
    # ------------------------------------------------------------ targets
    m("gamma around the reward as well", LEARN,
      "b.reward + b.discount * v for b, v", "b.discount * (b.reward + v) for b, v", SAC),
    m("gain outside gamma's bracket", LEARN,
      "values[0] = values[0] + shaping.bonus(latents.next_z, actions[0])[0]",
      "values[0] = values[0] + shaping.bonus(latents.next_z, actions[0])[0] / jnp.maximum(backups[0].discount, 1e-3)",
      MAXINFO),
    m("gain of the state instead of the next one", LEARN,
      "shaping.bonus(latents.next_z, actions[0])", "shaping.bonus(latents.z, actions[0])", MAXINFO),
    m("entropy missing in the target", LEARN,
      "values[shaping.entropy] - self.temperature(s) * logps[shaping.entropy]", "values[shaping.entropy]", SAC),
    m("maximum of the target critics", LEARN, "return q.min(1), a, logp", "return q.max(1), a, logp", SAC),
    m("target from the fast critics", LEARN,
      "lambda leaf: leaf[channels], s.target.critic.heads)", "lambda leaf: leaf[channels], s.params.critic.heads)", SAC),
    m("target action from the slow policy", LEARN,
      "self.policy.sample(self.pi(s.params.actor, features), k_action, self.sigma(s, clock))",
      "self.policy.sample(self.pi(s.target.actor, features), k_action, self.sigma(s, clock))", SAC),
    m("gradient through the target", LEARN,
      "return stop_gradient(jnp.stack([b.reward", "return (jnp.stack([b.reward", f"{LEARNER}::test_targets_are_constants"),
    m("loss summed over critics", LEARN,
      "jnp.square(q - y[:, None]).mean((1, 2)).sum()", "jnp.square(q - y[:, None]).mean(2).sum()", SAC),
    # ------------------------------------------------------------ target networks
    m("stale target critic", LEARN,
      "slow = TargetNetworks(polyak(s.target.critic, critic, self.tau), s.target.actor)",
      "slow = TargetNetworks(s.target.critic, s.target.actor)", SAC),
    m("target critic lags one update more", LEARN,
      "polyak(s.target.critic, critic, self.tau)", "polyak(s.target.critic, s.params.critic, self.tau)", SAC),
    m("stale target policy", LEARN,
      "slow = TargetNetworks(s.target.critic, polyak(s.target.actor, actor, self.tau))", "slow = s.target", MAXINFO),
    m("tau on the wrong side", LEARN,
      "(1 - tau) * s + tau * f, slow, fast", "tau * s + (1 - tau) * f, slow, fast",
      f"{PARTS}::test_polyak_moves_the_target_by_tau"),
    # ------------------------------------------------------------ improvement
    m("actor reads the target critics", LEARN,
      "self.read(self.q(s.params.critic, features, a, k_dropout))",
      "self.read(self.q(s.target.critic, features, a, k_dropout))", SAC),
    m("actor reads the mean", LEARN,
      'return q.min(1) if self.critic_reduction == "min" else q.mean(1)', "return q.mean(1)", SAC),
    m("entropy's sign in the actor", LEARN,
      "objective = objective - shaping.weight[shaping.entropy] * alpha * logp",
      "objective = objective + shaping.weight[shaping.entropy] * alpha * logp", SAC),
    m("no gradient through the gain", LEARN,
      "objective = objective + bonus", "objective = objective + stop_gradient(bonus)", MAXINFO),
    m("target entropy's sign", LEARN,
      "-float(batch.action.shape[-1])", "float(batch.action.shape[-1])", SAC),
    m("behaviour without noise", LEARN,
      'return self.policy.act(out, key, self.sigma(s, clock, "acting"))', "return self.policy.mode(out)",
      f"{LEARNER}::test_acting_samples_the_policy"),
    # ------------------------------------------------------------ order of one update
    m("model before actor", "core/update.py",
      "    state, more = agent.actor_step(state, batch, latents, k_actor, at)\n"
      "    state, model = agent.model_step(state, latents)\n",
      "    state, model = agent.model_step(state, latents)\n"
      "    state, more = agent.actor_step(state, batch, latents, k_actor, at)\n", MAXINFO),
    m("actor before critic", "core/update.py",
      "    state, metrics, latents, batch, at = evaluate(state, last, count - 1)\n"
      "    state, more = agent.actor_step(state, batch, latents, k_actor, at)\n",
      "    _, metrics, latents, batch, at = evaluate(state, last, count - 1)\n"
      "    state, more = agent.actor_step(state, batch, latents, k_actor, at)\n"
      "    state = evaluate(state, last, count - 1)[0]\n", SAC),
    m("model trained once per round", "core/update.py",
      "return agent.model_step(state, latents)[0], None", "return state, None",
      f"{LEARNER}::test_a_round_of_critic_steps_is_those_steps_one_by_one"),
    m("one key for all critic steps of a round", "core/update.py",
      "jax.random.fold_in(k_critic, i), at)", "jax.random.fold_in(k_critic, 0), at)",
      f"{LEARNER}::test_a_round_of_critic_steps_is_those_steps_one_by_one"),
    m("one batch for all rounds", "core/update.py",
      "s.replay.sample(jax.random.fold_in(k_sample, i), shape", "s.replay.sample(k_sample, shape",
      f"{LAWS}::test_scanned_updates_are_single_ones"),
    m("learn first, insert later", "core/update.py",
      "s, metrics = self.learn(self.insert(s, t))\n", "s, metrics = self.learn(s)\n        s = self.insert(s, t)\n",
      f"{LAWS}::test_a_step_inserts_then_learns_then_acts"),
    m("the same noise at every step", "core/update.py",
      "jax.random.fold_in(stream(s.seed, STEP, s.clock.step), 0)", "jax.random.fold_in(stream(s.seed, STEP, 0), 0)",
      f"{LAWS}::test_clocks_metrics_and_warm_up"),
    # ------------------------------------------------------------ parts
    m("a multiplier's sign", "core/multiplier.py",
      "slack = stop_gradient(jnp.mean(value) - jnp.mean(jnp.asarray(target)))",
      "slack = stop_gradient(jnp.mean(jnp.asarray(target)) - jnp.mean(value))",
      f"{PARTS}::test_a_multiplier_falls_while_its_value_is_above_the_target"),
    m("a multiplier's gradient times its value", "core/multiplier.py",
      "descend(self.optimizer, slack, m.opt, m.log)", "descend(self.optimizer, slack * jnp.exp(m.log), m.opt, m.log)",
      f"{PARTS}::test_the_gradient_of_a_multiplier_is_the_slack_itself"),
    m("a multiplier without bounds", "core/multiplier.py",
      "jnp.exp(jnp.clip(m.log, jnp.log(LOW), jnp.log(HIGH)))", "jnp.exp(m.log)",
      f"{PARTS}::test_a_multiplier_is_clipped_in_value_and_not_in_gradient"),
    m("log-probability without the tanh", "core/policies.py",
      "(log_normal - log_slope).sum(-1)", "log_normal.sum(-1)",
      f"{PARTS}::test_log_probability_is_that_of_the_squashed_gaussian"),
    m("noise of a deterministic policy not clipped", "core/policies.py",
      "noise = jnp.clip(sigma * jax.random.normal(key, out.shape), -self.clip, self.clip)",
      "noise = sigma * jax.random.normal(key, out.shape)",
      f"{PARTS}::test_noise_of_a_deterministic_policy_is_clipped_in_updates_only"),
    m("no gradient where the action saturates", "core/policies.py",
      "return action + stop_gradient(jnp.clip(action, -1, 1) - action), ", "return jnp.clip(action, -1, 1), ",
      f"{PARTS}::test_noise_of_a_deterministic_policy_is_clipped_in_updates_only"),
    m("statistics pass a gradient", "core/normalizer.py",
      "return (x - stop_gradient(self.mean)) / stop_gradient(self.std)", "return (x - self.mean) / self.std",
      f"{PARTS}::test_statistics_are_constants_to_every_gradient"),
    m("statistics forget that the mean moved", "core/normalizer.py",
      "(self.std**2 + (self.mean - mean) ** 2)", "self.std**2",
      f"{PARTS}::test_normalizer_equals_the_statistics_of_everything_seen"),
    m("no floor under the deviation", "core/normalizer.py",
      "std = jnp.maximum(jnp.sqrt(spread / count), FLOOR)", "std = jnp.sqrt(spread / count)",
      f"{PARTS}::test_normalizer_floor_and_cap"),
    # ------------------------------------------------------------ replay
    m("termination bootstraps", "replay.py",
      "return Backup(reward, discount * bootstrap, ", "return Backup(reward, discount, ", REPLAY),
    m("truncation does not bootstrap", "replay.py",
      "self.end[lane, last % self.rows] != TERMINATED", "self.end[lane, last % self.rows] == 0", REPLAY),
    m("n-step returns run past a truncation", "replay.py",
      "going = going & (self.end[lane, at] == 0) &", "going = going & (self.end[lane, at] != TERMINATED) &", REPLAY),
    m("n-step returns run past the newest transition", "replay.py",
      " & (row + j != newest)", "", REPLAY),
    m("gamma**n even where fewer rewards were summed", "replay.py",
      "discount = jnp.where(going, discount * gamma, discount)", "discount = discount * gamma", REPLAY),
    m("rewards not discounted within the return", "replay.py",
      "jnp.where(going, discount * self.reward[lane, at], 0)", "jnp.where(going, self.reward[lane, at], 0)", REPLAY),
    m("bootstrap from the state itself", "replay.py",
      "self.frames(lane, last + 1))", "self.frames(lane, last))", REPLAY),
    m("a start leaves one row late", "replay.py",
      "oldest, popped = head - rows + self.stack - 1, self.popped",
      "oldest, popped = head - rows + self.stack - 2, self.popped", REPLAY),
    m("a start leaves one row early", "replay.py",
      "oldest, popped = head - rows + self.stack - 1, self.popped",
      "oldest, popped = head - rows + self.stack, self.popped", REPLAY),
    m("the last observation gives way to the next first", "replay.py",
      "jnp.where(t.valid, 1 + over, cut)", "jnp.where(t.valid, 1, cut)", REPLAY),
    m("an episode that was cut goes on", "replay.py",
      "(before, TRUNCATED, cut)", "(before, 0, cut)", REPLAY),
    m("writing a row copies its column", "replay.py",
      "(*writes, nowhere) if len(writes) == 1 else writes", "writes", f"{REPLAY}::test_a_step_copies_no_column"),
    m("resets count as transitions", "replay.py", "self.pushed + t.valid,", "self.pushed + 1,", REPLAY),
    m("the newest transition is never drawn", "replay.py",
      "jnp.maximum(bound[-1], 1)", "jnp.maximum(bound[-1] - 1, 1)", REPLAY),
    m("frame stacks cross a reset", "replay.py",
      "back = jnp.minimum(jnp.arange(self.stack)[::-1], age[..., None])",
      "back = jnp.arange(self.stack)[::-1]", REPLAY),
]  # fmt: skip

ALGORITHMS = [
    # ------------------------------------------------------------ information gain and its relatives
    m("variance over the batch", "intrinsic/ensemble.py",
      "(x - stop_gradient(x[:1])).var(0, ddof=ddof)",
      "jnp.broadcast_to((x - stop_gradient(x[:1])).var(1, ddof=ddof).mean(0), x.shape[1:])",
      f"{INTRINSIC}::test_information_gain_of_a_case_made_by_hand", MAXINFO),
    m("sample variance in the information gain", "intrinsic/info_gain.py",
      "jnp.log1p(variance(mean) / noise)", "jnp.log1p(variance(mean, 1) / noise)",
      f"{INTRINSIC}::test_information_gain_of_a_case_made_by_hand"),
    m("noise not squared", "intrinsic/info_gain.py",
      "noise = self.noise**2 if", "noise = self.noise if",
      f"{INTRINSIC}::test_information_gain_of_a_case_made_by_hand"),
    m("population deviation in the disagreement", "intrinsic/ensemble.py",
      "square = variance(x, ddof=1)", "square = variance(x)", f"{INTRINSIC}::test_disagreement_of_a_case_made_by_hand"),
    m("a square root without a gradient at 0", "intrinsic/ensemble.py",
      "jnp.sqrt(jnp.where(apart, square, 1.0))", "jnp.sqrt(square)",
      f"{INTRINSIC}::test_members_that_agree_score_zero_with_a_finite_gradient"),
    m("gradient into the model that is asked", "intrinsic/ensemble.py",
      "self.predict(stop_gradient(model.members),", "self.predict(model.members,",
      f"{INTRINSIC}::test_a_model_is_a_constant_to_those_who_ask_it"),
    m("targets normalised with the statistics before", "intrinsic/ensemble.py",
      "(model.members, inputs(x), outputs(y))", "(model.members, model.inputs(x), model.outputs(y))",
      f"{INTRINSIC}::test_statistics_contain_the_batch_before_it_is_normalised"),
    m("the model predicts the next state", "intrinsic/ensemble.py",
      "e.next_z - e.z if model.delta else e.next_z", "e.next_z", f"{INTRINSIC}::test_targets_of_states_and_of_latents"),
    m("blocks weigh by their width", "intrinsic/ensemble.py",
      "part.mean(-1) for part", "part.sum(-1) for part", f"{INTRINSIC}::test_disagreement_of_a_case_made_by_hand"),
    m("learned noise that likes to be large", "intrinsic/ensemble.py",
      "(0.5 * error / std**2 + jnp.log(std))", "(0.5 * error / std**2 - jnp.log(std))",
      f"{INTRINSIC}::test_learned_noise_is_trained_by_the_likelihood"),
    m("curiosity in raw units", "intrinsic/curiosity.py",
      "model.outputs(self.target(model, model.inputs, e))", "self.target(model, model.inputs, e)",
      f"{INTRINSIC}::test_curiosity_of_a_case_made_by_hand"),
    m("the random network is trained", "intrinsic/ensemble.py",
      "members=members, opt=opt, inputs=inputs, outputs=outputs)",
      "members=members, opt=opt, inputs=inputs, outputs=outputs,\n"
      "                        frozen=jax.tree.map(lambda x: 0.999 * x, model.frozen))",
      f"{INTRINSIC}::test_the_random_network_is_never_trained_and_its_predictors_come_to_agree"),
    # ------------------------------------------------------------ MaxInfo
    m("the actor standardises with old statistics", "explore/maxinfo.py",
      "return alpha2 * scale(raw), (scale, raw)", "return alpha2 * s.scale(raw), (scale, raw)", MAXINFO),
    m("statistics without the target policy's gains", "explore/maxinfo.py",
      "s.scale.update(jnp.concatenate([raw, target_raw]))", "s.scale.update(raw)", MAXINFO),
    m("the critic's gain is not standardised", "explore/maxinfo.py",
      "alpha2 * s.scale(self.intrinsic.score(s.model, z, a))", "alpha2 * self.intrinsic.score(s.model, z, a)", MAXINFO),
    m("the target policy shares the policy's noise", "explore/maxinfo.py",
      "jax.random.fold_in(key, 1), clock)", "jax.random.split(key)[0], clock)",
      f"{LEARNER}::test_target_policy_and_policy_draw_their_own_noise"),
    m("the base's key does not pass untouched", "explore/maxinfo.py",
      "self.learner.critic_step(s.learner, batch, key, clock, shaping)",
      "self.learner.critic_step(s.learner, batch, jax.random.fold_in(key, 9), clock, shaping)",
      f"{LAWS}::test_maxinfo_without_weight_is_sac_bit_for_bit"),
    m("alpha2's sign", "explore/maxinfo.py",
      "weight = self.weight.step(s.weight, scale(raw), held_at)",
      "weight = self.weight.step(s.weight, held_at, scale(raw))",
      f"{LEARNER}::test_alpha2_rises_iff_the_policy_gathers_less_than_the_target_policy"),
    m("mask on the gain's own critic", "explore/maxinfo.py",
      "(batch.one if self.episodic else batch.non_episodic)", "batch.one",
      f"{REFERENCE}::test_maxinfo_on_an_nstep_base_keeps_the_gain_in_its_own_critic"),
    # ------------------------------------------------------------ DroQ and DDPG
    m("targets without dropout", LEARN,
      "q = self.heads(s.target.critic, heads, features, a, k_dropout)",
      "q = self.heads(s.target.critic, heads, features, a, None)",
      f"{LEARNER}::test_dropout_follows_its_key_in_values_and_targets"),
    m("one dropout for all critics", LEARN,
      "keys = jax.random.split(key, flat.layers[0].bias.shape[0])",
      "keys = jnp.stack([key] * flat.layers[0].bias.shape[0])",
      f"{LEARNER}::test_dropout_follows_its_key_in_values_and_targets"),
    m("DDPG with DrQv2's clip", "algorithms.py",
      "NoisyDeterministic(clip=0.5)", "NoisyDeterministic(clip=0.3)", f"{LEARNER}::test_the_papers_numbers"),
    # ------------------------------------------------------------ REDQ and OAC
    m("a subset of two equal critics", LEARN,
      "(self.num_min_critics,), replace=False)", "(self.num_min_critics,), replace=True)",
      f"{LEARNER}::test_two_distinct_target_critics_per_update"),
    m("optimism's norm over the batch", "core/policies.py",
      "(gradient**2 * var).sum(-1, keepdims=True)", "(gradient**2 * var).sum()",
      f"{PARTS}::test_optimism_treats_rows_independently_and_is_nothing_without_cause"),
    m("optimism without the variance", "core/policies.py",
      "self.shift * var * gradient / norm", "self.shift * gradient / norm",
      f"{PARTS}::test_optimism_shifts_by_a_fixed_divergence"),
    m("optimism that fears the spread", "core/policies.py",
      "value.mean(0) + self.beta *", "value.mean(0) - self.beta *",
      f"{PARTS}::test_optimism_follows_the_upper_bound"),
    m("optimism in evaluation", LEARN,
      "        if not explore:\n            return self.policy.mode(out)\n        if self.optimism is not None:\n"
      "            out = self.optimism(self.policy, out, lambda a: self.q(s.params.critic, features, a)[0])\n",
      "        if self.optimism is not None:\n"
      "            out = self.optimism(self.policy, out, lambda a: self.q(s.params.critic, features, a)[0])\n"
      "        if not explore:\n            return self.policy.mode(out)\n",
      f"{LEARNER}::test_evaluation_is_tanh_of_the_mean_and_draws_nothing"),
    # ------------------------------------------------------------ intrinsic sum and EIPO
    m("lambda's sign", "explore/eipo.py",
      "self.weight.step(mixed.weight, mixture.value[0], alone.value[0])",
      "self.weight.step(mixed.weight, alone.value[0], mixture.value[0])",
      f"{EXPLORE}::test_lambda_holds_the_task_value_at_the_greedy_agents"),
    m("lambda multiplies the intrinsic value", "explore/intrinsic_sum.py",
      "(1.0, 1.0 / self.weight.value(s.weight))", "(1.0, self.weight.value(s.weight))", EIPO),
    m("mask on the intrinsic critic", "explore/intrinsic_sum.py",
      "batch.non_episodic._replace(reward=reward)", "batch.one._replace(reward=reward)", SUM),
    m("entropy on the task's channel", "explore/intrinsic_sum.py", "entropy=1)", "entropy=0)", SUM),
    m("the greedy agent has entropy", "explore/eipo.py", "GREEDY = Shaping(entropy=None)", "GREEDY = Shaping()", EIPO),
    m("the greedy agent acts", "explore/eipo.py", "return self.mixed.learner", "return self.greedy",
      f"{EXPLORE}::test_the_greedy_agent_has_no_entropy_and_never_acts"),
    m("the intrinsic reward's statistics updated before use", "explore/intrinsic_sum.py",
      "s.scale(reward(latents))", "s.scale.update(reward(latents))(reward(latents))", SUM),
    m("statistics of standardised rewards", "explore/intrinsic_sum.py",
      "scale=s.scale.update(raw))", "scale=s.scale.update(s.scale(raw)))", SUM),
    # ------------------------------------------------------------ switch
    m("a switch inside a round", "explore/switch.py",
      "turn = clock.step // self.schedule.period", "turn = clock.step // (self.schedule.period // 2 + 1)",
      f"{EXPLORE}::test_the_mode_is_constant_within_a_round"),
    m("epsilon below zero", "explore/switch.py", "jnp.maximum(0.0, (self.start", "jnp.maximum(-9.0, (self.start",
      f"{EXPLORE}::test_epsilon_falls_linearly_and_stops_at_zero"),
    m("explore one step longer", "explore/switch.py",
      "(remaining > 1 - self.fraction)", "(remaining >= 1 - self.fraction)",
      f"{EXPLORE}::test_explore_then_exploit_switches_once_at_a_quarter"),
    m("the curious agent never ends", "explore/switch.py",
      "batch.one._replace(reward=reward)", "batch.non_episodic._replace(reward=reward)", SWITCH),
    m("the curious agent learns the task", "explore/switch.py",
      "Shaping(backup=(batch.one._replace(reward=reward),))", "Shaping(backup=(batch.one,))",
      f"{EXPLORE}::test_the_curious_agent_knows_nothing_of_the_reward"),
    m("the curious agent is evaluated", "explore/switch.py",
      "        if not explore:\n            return task\n", "",
      f"{EXPLORE}::test_who_acts_is_who_the_schedule_says"),
]  # fmt: skip

ENCODER, SEEING, DRM, PRODUCT, FRAMES, PROBE = (
    f"tests/test_pixels_{n}.py" for n in ("encoder", "learner", "drm", "product", "replay", "probe")
)
EYES, PLASTIC = "core/encoders.py", "core/plasticity.py"
FEATURES = f"{ENCODER}::test_features_are_four_convolutions_in_nhwc_order"
PROJECTION = f"{ENCODER}::test_projection_is_dense_layer_norm_tanh_with_lecun_weights"
SLOPES = f"{ENCODER}::test_gradients_of_the_convolution_are_those_of_jax"
VIEWS = f"{ENCODER}::test_every_image_of_a_batch_is_shifted_on_its_own"
COUNTED = f"{DRM}::test_the_ratio_counts_neurons_zeroed_by_hand"
PASSES = f"{PRODUCT}::test_an_update_encodes_as_few_images_as_the_algorithm_allows"

PIXELS = [
    # ------------------------------------------------------------ the encoder
    m("the critic's loss does not train the encoder", LEARN,
      "(*to_encoder(by_features), by_critic)", "(*to_encoder(0 * by_features), by_critic)",
      "tests/test_pixels_learner.py"),
    m("images in slices out of order", EYES,
      "images.reshape(-1, few, *images.shape[1:])).reshape(count, -1)",
      "images.reshape(-1, few, *images.shape[1:])[::-1]).reshape(count, -1)", FEATURES),
    m("images from 0 to 255", EYES, "images.astype(jnp.float32) / 255", "images.astype(jnp.float32)", FEATURES),
    m("every convolution has stride 1", EYES, "(2, 1, 1, 1), 32", "(1, 1, 1, 1), 32",
      f"{ENCODER}::test_width_of_the_features"),
    m("a convolution's bias forgotten", EYES, "stride) + layer.bias)", "stride))", FEATURES),
    m("no ReLU", EYES, "x = jax.nn.relu(", "x = (", FEATURES),
    m("no tanh after the projection", EYES, "jnp.tanh(self.norm(self.dense(features)))",
      "self.norm(self.dense(features))", PROJECTION),
    m("an orthogonal projection", EYES, ', init="lecun")', ")", PROJECTION),
    m("one shift for a whole batch", EYES, "jax.random.randint(key, (2, count, 1), -SHIFT, SHIFT + 1)",
      "jnp.broadcast_to(jax.random.randint(key, (2, 1, 1), -SHIFT, SHIFT + 1), (2, count, 1))", VIEWS),
    m("shifts of at most 3", EYES, "-SHIFT, SHIFT + 1)", "1 - SHIFT, SHIFT)",
      f"{ENCODER}::test_a_shift_is_a_crop_of_the_image_padded_with_its_border"),
    m("the picture wraps around", EYES, "jnp.clip(jnp.arange(height) + down, 0, height - 1)",
      "(jnp.arange(height) + down) % height",
      f"{ENCODER}::test_a_shift_is_a_crop_of_the_image_padded_with_its_border"),
    m("observation and successor shifted alike", EYES, "view(batch.one, k_one)", "view(batch.one, k_obs)", VIEWS),
    m("the n-step observation not shifted", EYES, "view(batch.nstep, k_nstep)", "batch.nstep", VIEWS),
    m("channels pooled by default", EYES,
      "reshape(*lead, EMBEDDING, -1).max(-1)", "reshape(*lead, -1, EMBEDDING).max(-2)",
      f"{ENCODER}::test_the_embedding_is_a_maximum_over_windows"),
    m("latents as differences", EYES, "EMBEDDING, delta=False)", "EMBEDDING, delta=True)",
      f"{ENCODER}::test_latents_are_absolute_and_83_wide_with_embedding_and_reward"),
    m("a kernel not turned in the gradient", EYES, "weight[::-1, ::-1].transpose", "weight.transpose", SLOPES),
    m("rows no window reaches get a gradient", EYES, "KERNEL - 1 + more) for more", "KERNEL - 1) for more", SLOPES),
    m("JAX's own gradients", EYES, "convolve(x, layer.weight, stride)",
      'jax.lax.conv_general_dilated(x, layer.weight, (stride, stride), "VALID", dimension_numbers=LAYOUT)',
      f"{ENCODER}::test_convolutions_keep_the_layout_that_is_quick_in_a_loop"),
    m("float images", EYES, "if obs.dtype != jnp.uint8:", "if False:",
      f"{ENCODER}::test_what_cannot_be_encoded_is_refused_with_a_sentence"),
    m("a blind encoder", EYES, "return x.reshape(x.shape[0], -1)", "return 0 * x.reshape(x.shape[0], -1)", PROBE),
    # ------------------------------------------------------------ one encoder, latents, two critics
    m("the actor trains the convolutions", LEARN, "features, sigma, alpha = stop_gradient(self.features(s, batch.obs)),",
      "features, sigma, alpha = self.features(s, batch.obs),",
      f"{SEEING}::test_the_actors_loss_gives_no_gradient_to_the_convolutions"),
    m("z through the fast trunk", LEARN, "z = self.encoder.trunk(s.target.critic.trunk, features)\n",
      "z = self.encoder.trunk(s.params.critic.trunk, features)\n",
      f"{SEEING}::test_latents_come_through_the_target_trunk_of_the_augmented_batch"),
    m("the model predicts n steps on", LEARN,
      "self.features(s, batch.one.next_obs))", "self.features(s, batch.task.next_obs))",
      f"{SEEING}::test_latents_come_through_the_target_trunk_of_the_augmented_batch"),
    m("both critics' next actions share their noise", LEARN, "b.next_obs, own(k_action, c), own(k_dropout, c))",
      "b.next_obs, k_action, own(k_dropout, c))",
      f"{SEEING}::test_next_actions_of_the_two_critics_have_their_own_noise"),
    m("the gain itself in the n-step actor", "explore/maxinfo.py",
      "Shaping((None, None), (1.0, alpha2)) if", "Shaping((None, None), (1.0, alpha2), bonus=bonus) if",
      f"{SEEING}::test_the_gain_itself_gives_drqv2s_actor_no_gradient"),
    m("the gain's critic without its weight", "explore/maxinfo.py",
      "Shaping((None, None), (1.0, alpha2)) if", "Shaping((None, None), (1.0, 1.0)) if",
      f"{SEEING}::test_the_actor_maximises_both_critics_by_their_weight"),
    m("an image encoded once more than needed", LEARN, "self.pi(s.target.actor, self.features(s, obs))",
      "self.pi(s.target.actor, self.features(s, obs[::-1])[::-1])", PASSES),
    m("a schedule that is over early", "algorithms.py", "Linear(1.0, 0.1, 500_000)", "Linear(1.0, 0.1, 100_000)",
      f"{SEEING}::test_schedules_have_their_ends_and_stay_there"),
    m("wider noise in updates", "algorithms.py", "NoisyDeterministic(clip=0.3)", "NoisyDeterministic(clip=0.5)",
      f"{SEEING}::test_noise_of_updates_is_clipped_and_that_of_acting_is_not"),
    m("falling noise beside the gain", "algorithms.py",
      'replace(BASES["drqv2"], noise=NOISES["constant"])', 'BASES["drqv2"]',
      f"{SEEING}::test_the_information_gain_replaces_the_falling_noise"),
    # ------------------------------------------------------------ dormant neurons
    m("dormant against a fixed level", PLASTIC, "layer < self.threshold * layer.mean()", "layer < self.threshold",
      f"{DRM}::test_a_neuron_is_dormant_below_a_share_of_its_own_layer"),
    m("the projection's neurons not counted", LEARN,
      "(*self.encoder.linear(actor.trunk, features), *actor", "(*actor", COUNTED),
    m("a hidden layer not counted", LEARN, "*actor.head.hidden(z)[1:], actor.head(z))",
      "*actor.head.hidden(z)[2:], actor.head(z))", COUNTED),
    m("awake too early", PLASTIC, " & (update >= self.after)", "",
      f"{DRM}::test_waking_latches_and_not_before_step_2000"),
    m("waking anew", PLASTIC, "(v.awake == ASLEEP) & (ratio", "(ratio",
      f"{DRM}::test_waking_latches_and_not_before_step_2000"),
    m("the smaller of ratio and schedule", PLASTIC, "jnp.maximum(dormant,", "jnp.minimum(dormant,",
      f"{DRM}::test_noise_follows_the_ratio_until_the_actor_wakes"),
    m("the schedule always global", PLASTIC, "update - v.awake if self.origin", "update if self.origin",
      f"{DRM}::test_the_schedule_may_start_when_the_actor_wakes"),
    m("acting with the updates' noise", LEARN, 'self.sigma(s, clock, "acting")', "self.sigma(s, clock)",
      f"{DRM}::test_where_the_noise_follows_the_ratio"),
    m("more dormant, more kept", PLASTIC, "1 - self.factor * v.ratio", "self.factor * v.ratio",
      f"{DRM}::test_how_much_is_kept"),
    m("a perturbation one update late", PLASTIC, "(update + 1) % self.every", "update % self.every",
      f"{DRM}::test_only_on_multiples"),
    m("layer norms and convolutions perturbed", PLASTIC, " if dense(a) else a", "",
      f"{DRM}::test_keeping_all_changes_nothing_and_keeping_nothing_starts_anew"),
    m("target networks get the same fresh draws", LEARN, "perturbed(s.target, other.target, kappa)",
      "perturbed(s.target, fresh.target, kappa)", f"{DRM}::test_fresh_draws_are_independent_in_every_network"),
    m("target networks not perturbed", LEARN, "perturbed(s.target, other.target, kappa)", "s.target",
      f"{DRM}::test_dense_layers_of_every_network_are_drawn_towards_fresh_ones"),
    m("the actor's optimiser goes on", LEARN,
      ", actor_opt=fresh.actor_opt)", ")", f"{DRM}::test_optimisers_start_anew"),
    m("networks initialised at every update", LEARN,
      "jax.lax.cond(plasticity.due(clock.update), perturb, lambda s: s, s) if",
      "jax.tree.map(lambda a, b: jnp.where(plasticity.due(clock.update), a, b), perturb(s), s) if",
      f"{DRM}::test_a_perturbation_stays_conditional_when_seeds_are_mapped"),
    # ------------------------------------------------------------ frames once
    m("adding copies the buffer", "replay.py", "_put(self.obs, (after, t.next_obs, over), (now, t.obs, always)),",
      "jnp.where(t.valid.all(), _put(self.obs, (after, t.next_obs, over), (now, t.obs, always)), self.obs),",
      f"{FRAMES}::test_adding_writes_in_place"),
    m("the newest stack crosses a reset", "replay.py",
      "(now, 0, over | cut)),", "(now, age + 1, over | cut)),",
      f"{FRAMES}::test_a_stack_never_crosses_a_reset"),
    m("evaluation stacks the newest frame first", "training/evaluate.py",
      "np.concatenate([self.frames[lane][..., self.channels :], frame], -1)",
      "np.concatenate([frame, self.frames[lane][..., : -self.channels]], -1)",
      f"{FRAMES}::test_evaluation_stacks_as_the_replay_does"),
    m("evaluation keeps old frames over a reset", "training/evaluate.py",
      "self.frames[lane] = np.concatenate([frame] * (self.frames.shape[-1] // frame.shape[-1]), -1)",
      "self.push(lane, frame)",
      f"{FRAMES}::test_evaluation_stacks_as_the_replay_does"),
]  # fmt: skip

MUTATIONS = CORE + ALGORITHMS + PIXELS


def pytest(tests: tuple[str, ...], source: Path) -> tuple[int, str]:
    """Exit code and the end of the output of the tests against the sources in a directory."""
    cache = os.environ.get("MAXINFORL_MUTATION_CACHE", str(Path(tempfile.gettempdir()) / "maxinforl-mutation-cache"))
    more = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "JAX_COMPILATION_CACHE_DIR": cache}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr)[-2000:]


def judge(mutation: Mutation, source: Path) -> str:
    """caught, survived or error; the copy is as it was afterwards."""
    path = source / "maxinforl" / mutation.file
    kept = path.read_text()
    try:
        path.write_text(mutation.apply(kept))
        code, output = pytest(mutation.tests, source)
    except LookupError as error:
        return f"error: {error}"
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
            print(f"{i:3}  {x.file:28} {x.what}")
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
            print(f"{i:3}  {verdicts[-1]:9} {time.monotonic() - began:5.0f} s  {x.file:28} {x.what}", flush=True)
    caught = verdicts.count("caught")
    print(f"{caught} of {len(verdicts)} caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
