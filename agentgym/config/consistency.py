"""Settings that contradict each other, or that would be without effect.

A rule reads a whole config and answers with a sentence or None. `contradictions` holds for every
config, however it was made; `without_effect` needs to know which settings the user wrote, since a
default is no contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from agentgym.config.validation import Problem

if TYPE_CHECKING:
    from agentgym.config.schema import RunConfig

Rule = Callable[["RunConfig"], Problem | None]


def contradictions(config: RunConfig) -> list[Problem]:
    """Return every contradiction between settings of `config`."""
    return [problem for rule in _RULES if (problem := rule(config)) is not None]


def without_effect(config: RunConfig, given: Collection[str]) -> list[Problem]:
    """Return a problem for each setting of `given` (dotted names) that nothing would read."""
    return [
        Problem(key=key, text=f"'{key}' would be without effect: {reason}")
        for key in given
        if (reason := _reason_for_no_effect(config, key)) is not None
    ]


def _reason_for_no_effect(config: RunConfig, key: str) -> str | None:
    section, _, name = key.partition(".")
    family = config.policy.partition(":")[0]
    if section == "model" and name in {"hidden_size", "layers", "heads"} and family != "tiny":
        return (
            f"the policy {config.policy!r} comes with its size; only 'tiny' models are built here"
        )
    if key == "rollout.engine" and family == "vllm":
        return f"the policy {config.policy!r} samples on servers"
    if key == "rollout.weight_sync" and family != "vllm":
        return f"the policy {config.policy!r} samples without servers"
    if key == "rollout.min_group_size" and config.rollout.stragglers != "close":
        return "'rollout.stragglers' is 'wait', so no group is closed"
    if key == "rollout.partial" and config.rollout.max_staleness == 0:
        return "'rollout.max_staleness' is 0, so no weights change in the middle of an episode"
    if key == "model.lora_alpha" and config.model.lora_rank == 0:
        return "'model.lora_rank' is 0, so there are no adapters"
    if section == "warmstart" and name != "steps" and not _warmstart_reads(config, name):
        return "'warmstart.steps' is 0, so there is no warm start"
    if section == "eval" and not _evaluates(config) and name not in {"every", "at_start", "at_end"}:
        return (
            "no evaluation is asked for ('eval.every' is 0, 'eval.at_start' and 'at_end' are off)"
        )
    return None


def _warmstart_reads(config: RunConfig, name: str) -> bool:
    return config.warmstart.steps > 0 or name == "path"


def _evaluates(config: RunConfig) -> bool:
    return config.eval.every > 0 or config.eval.at_start or config.eval.at_end


def _problem(key: str, text: str) -> Problem:
    return Problem(key=key, text=text)


def _greedy_training(config: RunConfig) -> Problem | None:
    if config.rollout.temperature > 0:
        return None
    return _problem(
        "rollout.temperature",
        "'rollout.temperature' must be > 0 for training (got 0): greedy episodes of one task are "
        "all alike, so there is nothing to compare",
    )


def _filtered_sampling(config: RunConfig) -> Problem | None:
    sampling = config.rollout.sampling()
    if sampling.keeps_full_support:
        return None
    got = [
        f"rollout.{name}={getattr(config.rollout, name)!r}"
        for name, neutral in (("top_p", 1), ("top_k", 0), ("min_p", 0))
        if getattr(config.rollout, name) != neutral
    ]
    return _problem(
        got[0].partition("=")[0],
        f"{', '.join(got)} cuts tokens off the distribution that the probability ratio is taken "
        "over; training needs top_p=1, top_k=0, min_p=0",
    )


def _staleness(config: RunConfig) -> Problem | None:
    bound = config.rollout.max_staleness
    updates = config.optim.updates_per_step
    if bound == 0 or bound >= updates:
        return None
    return _problem(
        "rollout.max_staleness",
        f"'rollout.max_staleness' must be 0 or at least the {updates} updates of a step "
        f"(got {bound!r}): episodes cannot be less than a step ahead",
    )


def _stale_determinism(config: RunConfig) -> Problem | None:
    if not (config.deterministic and config.rollout.max_staleness):
        return None
    return _problem(
        "rollout.max_staleness",
        f"'deterministic' needs 'rollout.max_staleness' 0 (got {config.rollout.max_staleness!r}): "
        "which weights sample a token depends on how long everything takes",
    )


def _minimum_group(config: RunConfig) -> Problem | None:
    smallest, size = config.rollout.min_group_size, config.rollout.group_size
    if smallest is None or smallest <= size:
        return None
    return _problem(
        "rollout.min_group_size",
        f"'rollout.min_group_size' must be at most 'rollout.group_size' {size!r} (got {smallest})",
    )


def _minibatches(config: RunConfig) -> Problem | None:
    if config.optim.minibatches <= config.rollout.groups_per_step:
        return None
    return _problem(
        "optim.minibatches",
        f"'optim.minibatches' must be at most 'rollout.groups_per_step' "
        f"(got {config.optim.minibatches!r} for {config.rollout.groups_per_step!r} groups)",
    )


def _warmup(config: RunConfig) -> Problem | None:
    updates = config.steps * config.optim.updates_per_step
    if config.optim.warmup_steps <= updates:
        return None
    return _problem(
        "optim.warmup_steps",
        f"'optim.warmup_steps' must be at most the run's {updates} updates "
        f"(got {config.optim.warmup_steps!r}): the learning rate would never be reached",
    )


def _warmstart_path(config: RunConfig) -> Problem | None:
    if config.warmstart.path is None or config.warmstart.steps == 0:
        return None
    return _problem(
        "warmstart.path",
        f"'warmstart.path' begins from an earlier warm start, so 'warmstart.steps' must be 0 "
        f"(got {config.warmstart.steps!r})",
    )


def _learned_policy(config: RunConfig) -> Problem | None:
    family = config.policy.partition(":")[0]
    if family not in {"expert", "human", "openai"}:
        return None
    return _problem(
        "policy",
        f"the policy {config.policy!r} gives no token ids and cannot be trained; "
        "use tiny, smollm2 or a transformers folder",
    )


def _deterministic_vllm(config: RunConfig) -> Problem | None:
    is_vllm = config.policy.startswith("vllm:") or config.rollout.engine == "vllm"
    if not (config.deterministic and is_vllm):
        return None
    return _problem(
        "deterministic",
        "'deterministic' cannot be had from vLLM, whose batches depend on who asks first; "
        "take rollout.engine=transformers",
    )


def _duplicate_envs(config: RunConfig) -> Problem | None:
    seen = [
        (source.name, source.split, str(sorted(source.kwargs.items()))) for source in config.envs
    ]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if not twice:
        return None
    return _problem(
        "envs", f"'envs' lists {twice[0][0]!r} twice; give it once, with a larger weight"
    )


_RULES: tuple[Rule, ...] = (
    _greedy_training,
    _filtered_sampling,
    _staleness,
    _stale_determinism,
    _minimum_group,
    _minibatches,
    _warmup,
    _warmstart_path,
    _learned_policy,
    _deterministic_vllm,
    _duplicate_envs,
)
