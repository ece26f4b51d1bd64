"""What parts of a preset cannot do together: `contradictions`, found when it is loaded."""

from __future__ import annotations

from agentgym.trainers.objective.preset_schema import PartConfig, Preset
from agentgym.trainers.parts import registry
from agentgym.trainers.parts.registry import Need, Slot


def contradictions(preset: Preset, *, group_size: int | None = None) -> tuple[str, ...]:
    """Return what parts of the preset cannot do together, one sentence each."""
    return (
        *_name_problems(preset),
        *_shape_problems(preset),
        *_critic_problems(preset),
        *_term_problems(preset),
        *_need_problems(preset, group_size),
    )


def _name_problems(preset: Preset) -> list[str]:
    """Return references to rewards and terms that do not exist, and names that come twice."""
    problems: list[str] = []
    rewards = [config.name or config.part for config in preset.rewards]
    terms = [term.name for term in preset.terms]
    for kind, names in (("reward", rewards), ("term", terms)):
        twice = sorted({name for name in names if names.count(name) > 1})
        problems.extend(f"two {kind}s are named {name!r}" for name in twice)
    readers = [(f"terms.{term.name}", term.reward) for term in preset.terms]
    if preset.critic is not None:
        readers.append(("critic", preset.critic.reward))
    for path, wanted in readers:
        problems.extend(
            f"{path}: unknown reward {name!r}{registry.hint(name, rewards)}"
            for name in wanted
            if name not in rewards
        )
    for path, key in (("combine", "accumulate"), ("bounds", "term")):
        config = getattr(preset, path)
        wanted = config.parameters.get(key) if config is not None else None
        if wanted is not None and wanted not in terms:
            problems.append(f"{path}.{key}: unknown term {wanted!r}{registry.hint(wanted, terms)}")
    return problems


def _shape_problems(preset: Preset) -> list[str]:
    """Return slots that exclude or require each other."""
    problems: list[str] = []
    if preset.critic is not None and preset.terms:
        problems.append("'critic' stands instead of 'terms': give one of the two (got both)")
    if preset.critic is None and not preset.terms and preset.group_objective is None:
        problems.append("an advantage is needed: give 'terms' or a 'critic' (got neither)")
    if preset.critic is None and preset.terms and (preset.combine is None or preset.spread is None):
        problems.append("'terms' need a 'combine' and a 'spread' part")
    if preset.anchor.part == "behavior" and preset.correction.part != "none":
        problems.append(
            f"correction {preset.correction.part!r} is always 1 with the anchor 'behavior': use "
            "the anchor 'proximal', or the correction 'none'"
        )
    return problems


def _critic_problems(preset: Preset) -> list[str]:
    """Return rewards of a critic that belong to no turn: it would place them on the first."""
    if preset.critic is None:
        return []
    return [
        f"critic: reward {config.name or config.part!r} is one number a trajectory, and a critic "
        "places one a turn (part 'outcome' gives it with place 'last_turn'; 'terms' take both)"
        for config in preset.rewards
        if (config.name or config.part) in preset.critic.reward and _is_whole(config)
    ]


def _is_whole(reward: PartConfig) -> bool:
    """Return whether a reward is one number a trajectory."""
    return (
        "per_trajectory" in registry.find(Slot.REWARD, reward.part).traits
        or reward.parameters.get("place") == "trajectory"
    )


def _term_problems(preset: Preset) -> list[str]:
    """Return terms that want one number a turn where there is one a trajectory, or both."""
    whole = {config.name or config.part: _is_whole(config) for config in preset.rewards}
    problems: list[str] = []
    for term in preset.terms:
        kinds = {whole[name] for name in term.reward if name in whole}
        if len(kinds) > 1:
            problems.append(
                f"terms.{term.name}: rewards of turns and of trajectories cannot be added (got "
                f"{', '.join(map(repr, term.reward))}); give each a term of its own"
            )
            continue
        is_whole = kinds == {True}
        for op in term.ops:
            turns = {"turn", "agent"} & set(op.parameters.get("keys", ()))
            if is_whole and (turns or op.part == "to_go"):
                what = f"keys {', '.join(map(repr, sorted(turns)))} of {op.part!r} need"
                problems.append(
                    f"terms.{term.name}: {what if turns else f'{op.part!r} needs'} one number a "
                    "turn (got one a trajectory)"
                )
            is_whole = is_whole or op.part == "sum"
        combine = preset.combine
        is_one = [other.name for other in preset.terms].count(term.name) == 1
        accumulated = combine.parameters.get("accumulate") if combine is not None else None
        if is_whole and is_one and accumulated == term.name:
            problems.append(
                f"combine.accumulate: term {term.name!r} must be one number a turn "
                "(got one a trajectory)"
            )
    return problems


def _need_problems(preset: Preset, group_size: int | None) -> list[str]:
    """Return needs that other slots, or the run, cannot meet."""
    problems: list[str] = []
    gate = registry.find(Slot.GATE, preset.gate.part)
    if Need.CLIP_WIDTHS in preset.needs and "clip_low" not in gate.parameters:
        problems.append(
            f"bounds {preset.bounds.part!r} sets clip widths, which gate {preset.gate.part!r} "
            "has not"
        )
    if group_size is not None and group_size < 2 and Need.GROUP in preset.needs:
        problems.append(
            "a group baseline needs 2 or more trajectories of a task (got group size "
            f"{group_size!r}); raise the group size or take a preset without one: 'reinforce'"
        )
    if Need.BELIEF in preset.needs and not preset.probes:
        problems.append("a belief reward needs a probe: give 'probes' (got none)")
    return problems
