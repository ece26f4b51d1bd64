"""What a config implies before it is run: episodes, tokens, memory, staleness."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.config.schema import MICRO_BATCH_TOKENS, Device, Precision, RunConfig
from agentgym.env import registry
from agentgym.env.suites import load_suite
from agentgym.errors import AgentGymError, ConfigError
from agentgym.records.limits import Limits
from agentgym.runs.folder import read_config
from agentgym.runs.model_folder import weights_in
from agentgym.runs.policies import PolicyKind, read_policy, start_of

_TINY_PARAMETERS: Mapping[str, float] = {"small": 0.4e6, "base": 3.5e6, "large": 21e6}
_SMOLLM2_PARAMETERS = 134.5e6
TOKENIZER_EPISODES = 512
"""Episodes from which the tokenizer of a new model learns its merges."""
_ADAM_BYTES = 8  # two float32 moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Implication:
    """One line of a dry run.

    Example:
        Implication(name="episodes a step", value="16 tasks x 8 = 128")
    """

    name: str
    """What it is about."""
    value: str
    """What the config implies."""


def implications(config: RunConfig) -> list[Implication]:
    """Return what `config` implies, for a person."""
    limits = episode_limits(config)
    episodes = config.rollout.groups_per_step * config.rollout.group_size
    tokens = most_tokens(limits, config.rollout.max_new_tokens)
    updates = config.optim.updates_per_step
    found = [
        ("before step 1", _beginning_line(config)),
        ("episodes a step", _episodes_line(config)),
        ("episodes in all", f"{episodes * config.steps:,} in {config.steps} steps"),
        ("turns an episode", f"at most {limits.max_turns}" if limits.max_turns else "no bound"),
        ("sampled tokens", _tokens_line(tokens, episodes, config.steps)),
        ("reasoning", _reasoning_line(config)),
        ("updates", f"{updates} a step, {updates * config.steps} in all"),
        ("staleness", _staleness_line(config, updates)),
        *_gap_line(config),
        ("evaluation", _evaluation_line(config)),
        ("held-out tasks", _held_out_line(config)),
        ("memory", _memory_line(config)),
        ("ends after", _end_line(config)),
    ]
    return [Implication(name=name, value=value) for name, value in found if value]


def episode_limits(config: RunConfig) -> Limits:
    """Return the loosest bounds of an episode over the run's environments."""
    found: list[Limits] = []
    for source in config.envs:
        try:
            suite = load_suite(source.name)
            env = registry.make(suite.env_id, **{**suite.env_kwargs, **source.kwargs}).unwrapped
        except (AgentGymError, TypeError):  # `preflight` has said it; a dry run goes on
            continue
        found.append(getattr(env, "limits", Limits()).merged(config.limits.to_limits()))
        env.close()
    turns = [limits.max_turns for limits in found]
    tokens = [limits.max_tokens for limits in found]
    return Limits(
        max_turns=None if None in turns or not turns else max(t for t in turns if t),
        max_tokens=None if None in tokens or not tokens else max(t for t in tokens if t),
    )


def most_tokens(limits: Limits, max_new_tokens: int) -> int | None:
    """Return the most tokens that one episode can sample, None without bound."""
    by_turns = limits.max_turns * max_new_tokens if limits.max_turns is not None else None
    bounds = [bound for bound in (by_turns, limits.max_tokens) if bound is not None]
    return min(bounds, default=None)


def _beginning_line(config: RunConfig) -> str:
    """Return what is played and learned before the first step."""
    parts: list[str] = []
    warm = config.warmstart
    if read_policy(config.policy).kind is PolicyKind.TINY and warm.path is None:
        parts.append(f"{TOKENIZER_EPISODES} episodes that the tokenizer learns from")
    if warm.steps:
        parts.append(
            f"warm start: {warm.demos:,} expert episodes, {warm.steps:,} updates of "
            f"{warm.batch_size} each"
        )
    return "; ".join(parts) or "nothing is played or learned"


def _episodes_line(config: RunConfig) -> str:
    groups, size = config.rollout.groups_per_step, config.rollout.group_size
    live = min(groups * size, config.rollout.max_concurrent)
    return f"{groups} tasks x {size} = {groups * size}, {live} live at once"


def _tokens_line(tokens: int | None, episodes: int, steps: int) -> str:
    if tokens is None:
        return "no bound: set 'limits.max_turns' or 'limits.max_tokens'"
    a_step = tokens * episodes
    return f"at most {tokens:,} an episode, {a_step:,} a step, {a_step * steps:,} in all"


def _reasoning_line(config: RunConfig) -> str:
    """Return what the chat template does with reasoning; empty where it does nothing."""
    folder = read_policy(config.warmstart.path or config.policy).folder
    if folder is None:
        return ""
    # Imported here: the tokenizers package takes a while.
    from agentgym.renderer.folder import load_renderer

    try:
        renderer = load_renderer(folder, history=config.rollout.history)
    except (AgentGymError, OSError):  # `preflight` has said it; a dry run goes on
        return ""
    opener = renderer.profile.opener.strip()
    knows = [word for word in ("enable_thinking", "thinking") if word in renderer.template.source]
    if not opener and not knows:
        return ""
    does = (
        f"the chat template opens every turn with {opener!r}"
        if opener
        else (f"left to the model by the chat template, whose {knows[0]!r} is not set")
    )
    return f"{does}; it counts as sampled tokens"


def _staleness_line(config: RunConfig, updates: int) -> str:
    within = f"within a step the last of {updates} updates is {updates - 1} ahead"
    bound = config.rollout.max_staleness
    if bound:
        ahead = bound // updates
        groups = (ahead + 1) * config.rollout.groups_per_step
        found = (
            f"tokens at most {bound} updates old; {ahead} steps ahead, {groups} groups under way"
        )
        return found if updates == 1 else f"{found}; {within}"
    if updates == 1:
        return "none: every episode is trained on with the weights that sampled it"
    return f"none between steps; {within}"


def _gap_line(config: RunConfig) -> list[tuple[str, str]]:
    """Return what is done about the sampler's arithmetic, where it is not the learner's."""
    if not config.is_sampled_by_vllm:
        return []
    module: Any = importlib.import_module("agentgym.trainers.loop.run_preset")
    try:
        preset = module.preset_of(config)
    except ConfigError:  # `preflight` has said it; a dry run goes on
        return []
    part = preset.correction
    given = " ".join(f"{name}={value}" for name, value in part.parameters.items())
    done = {
        "behavior": "the ratio is measured from the sampler (anchor behavior)",
        "proximal": f"corrected by {part.part} importance weights ({given}); "
        "correction.part=none leaves it",
    }
    if part.part == "none":
        done["proximal"] = "not corrected, as 'correction.part' is none"
    return [("gap to vLLM", f"measured in every step; {done[preset.anchor.part]}")]


def _evaluation_line(config: RunConfig) -> str:
    settings = config.eval
    between = (config.steps - 1) // settings.every if settings.every else 0
    count = settings.at_start + between + settings.at_end
    if count == 0:
        return "none"
    suites = len(set(settings.suites or [source.name for source in config.envs]))
    each = f"{suites} suites x " if suites > 1 else ""
    return (
        f"{count} times {each}{settings.tasks} tasks x {settings.attempts} of split "
        f"{settings.split!r}, temperature {settings.temperature:g}"
    )


def _held_out_line(config: RunConfig) -> str:
    # Imported here: what looks at tasks makes environments.
    from agentgym.runs.preflight import evaluates, first_looks

    if not evaluates(config):
        return "none are asked"
    return str(first_looks(config)) or "of other environments than the training tasks"


def _end_line(config: RunConfig) -> str:
    ends = [f"{config.steps} steps"]
    if config.budget.minutes is not None:
        ends.append(f"{config.budget.minutes:g} minutes")
    if config.budget.tokens is not None:
        ends.append(f"{config.budget.tokens:,} sampled tokens")
    return " or ".join(ends)


def _memory_line(config: RunConfig) -> str:
    parameters = parameter_count(config.policy)
    if parameters is None:
        return "not known: the size of the model is not known here"
    is_narrow = config.optim.dtype is Precision.BFLOAT16 or (
        config.optim.dtype is Precision.AUTO and config.optim.device is Device.CUDA
    )
    if config.model.lora_rank:
        fixed = parameters * (2 if is_narrow else 4) + parameters * 0.01 * (8 + _ADAM_BYTES)
    else:
        # Trained weights and gradients are float32; the copy that samples is as narrow as asked.
        has_copy = is_narrow or config.rollout.max_staleness > 0
        fixed = parameters * (8 + _ADAM_BYTES + (2 if is_narrow else 4 if has_copy else 0))
    return (
        f"about {_bytes(fixed)} for {parameters / 1e6:,.1f} million weights, gradients and "
        f"AdamW; activations of {_micro_batch(config)} tokens and the cache of live episodes come "
        "on top"
    )


def _micro_batch(config: RunConfig) -> str:
    tokens = config.optim.micro_batch_tokens
    if tokens is not None:
        return f"{tokens:,}"
    texts = {device: f"{count:,}" for device, count in MICRO_BATCH_TOKENS.items()}
    known = texts.get(config.optim.device)
    return (
        known if known is not None else f"{texts[Device.CPU]} (CPU) or {texts[Device.CUDA]} (GPU)"
    )


def parameter_count(policy: str) -> float | None:
    """Return the number of weights of a policy by its name, None where it is not known."""
    name = read_policy(policy)
    if name.kind is PolicyKind.TINY:
        return _TINY_PARAMETERS.get(policy.partition(":")[2] or "small")
    if name.kind is PolicyKind.SMOLLM2:
        return _SMOLLM2_PARAMETERS
    folder = name.folder
    if name.kind is PolicyKind.CHECKPOINT and name.run is not None:
        return parameter_count(start_of(name.run, read_config(name.run)))
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    counts = [weights_in(file) for file in files]
    return sum(counts) if counts else None


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
