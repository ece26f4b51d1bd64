"""What playing an environment shows: scores of the expert and of players who do not try.

In order: `run`, the players, the comparison with what is declared, and whether gold answers can be
read before they are earned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym import seeding
from agentgym.checks.env_under_test import Subject, has_expert
from agentgym.checks.report import Findings, require
from agentgym.env import players as episodes
from agentgym.env.contract import TextEnv
from agentgym.env.players import Actor, Episode
from agentgym.records import ErrorKind
from agentgym.tool_formats.tools import Tool

UNDECLARED_NULL_SCORE = 0.2
"""Above it an environment must say why."""
LUCK = 0.02
"""A bound below this is not told from nothing with the few episodes of a check."""
_CHANCE = 1e-4
"""Probability at which answers that are seen are no longer taken for coincidence."""
_OVERSIZE_EPISODES = 4
_RANDOM, _CONSTANT = "random", "constant answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """All episodes of one player."""

    name: str
    episodes: tuple[Episode, ...]

    @property
    def outcome(self) -> float:
        """Mean outcome."""
        return sum(e.outcome for e in self.episodes) / len(self.episodes)

    @property
    def reward(self) -> float:
        """Mean sum of rewards."""
        return sum(e.total_reward for e in self.episodes) / len(self.episodes)

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % interval of the mean outcome."""
        return episodes.exact_bounds(sum(e.outcome for e in self.episodes), len(self.episodes))


def run(subject: Subject, findings: Findings, scores: dict[str, float]) -> None:
    """Play everything, add a finding for each claim, and the mean outcomes to `scores`."""
    expert = _play_expert(subject, findings)
    if expert is not None:
        scores["expert"] = expert.outcome
    # Of other tasks: a player who looks at the answers of these tasks would not be blind.
    answers = tuple(dict.fromkeys(a for task in subject.others if task for a in task.answers))
    moves = _first_moves(subject) if expert is not None else ()
    played: dict[str, _Played] = {}
    for name, actor in _players(subject, answers, moves).items():
        with findings.check(f"probe: {name}"):
            played[name] = _play(subject, name, actor)
            scores[name] = played[name].outcome
            _require_honest(subject, played[name], expert)
    with findings.check("null score"):
        _require_null_score(subject, played)
    reason = _declared(subject, "answer_shown_reason", "")
    if reason:
        findings.skip("answers stay hidden", str(reason))
    elif not any(task is not None and task.answers for task in subject.tasks):
        findings.skip("answers stay hidden", "the tasks have no gold answers")
    else:
        with findings.check("answers stay hidden"):
            _require_hidden(subject, list(played.values()))


# -- players -----------------------------------------------------------------------------------


def _play(subject: Subject, name: str, actor: Actor) -> _Played:
    # Long texts are slow to read, and the first few say whether they are bounded.
    count = _OVERSIZE_EPISODES if actor is episodes.oversize else subject.episodes_each
    with subject.instance() as env:
        played = [
            episodes.play(env, actor, task=subject.task(n), seed=subject.seed + n)
            for n in range(count)
        ]
    return _Played(name=name, episodes=tuple(played))


def _play_expert(subject: Subject, findings: Findings) -> _Played | None:
    with subject.instance() as env:
        inner = env.unwrapped
        if not has_expert(env, subject.tasks[0]):
            findings.skip("expert", "the environment ships no scripted expert")
            return None
        least = expert_score(inner)
    found: list[_Played] = []
    with findings.check("expert"):
        played = _play(subject, "expert", episodes.expert)
        found.append(played)
        wrong = [
            (action, info["error_kind"])
            for episode in played.episodes
            for action, info in zip(episode.actions, episode.infos, strict=True)
            if info.get("error_kind") is ErrorKind.FORMAT
        ]
        require(not wrong, f"the expert makes a format error: {wrong[:1]!r}")
        require_expert(played.outcome, least)
    return found[0] if found else None


def _first_moves(subject: Subject) -> tuple[str, ...]:
    """Return the expert's first action on other tasks: what an action looks like."""
    with subject.instance() as env:
        moves: list[str] = []
        for task in subject.others:
            env.reset(seed=subject.seed, options=subject.options(task))
            moves.append(env.unwrapped.expert())
    return tuple(moves)


def _players(subject: Subject, answers: Sequence[str], moves: Sequence[str]) -> Mapping[str, Actor]:
    """Return the players who do not try, and what the environment's family adds."""
    with subject.instance() as env:
        inner = env.unwrapped
        protocol = episodes.protocol_of(inner)
        tools = episodes.tools_on_offer(inner)
        extra: Mapping[str, Actor] = inner.extra_probes() if isinstance(inner, TextEnv) else {}
    players: dict[str, Actor] = {
        "silent": episodes.constant(""),
        "echo": episodes.echo,
        "echo as answer": episodes.echo_as_answer,
        "format only": episodes.constant(protocol.format_answer("")),
        "same call": episodes.constant(_same_call(subject, tools, moves)),
        "oversize": episodes.oversize,
        "time-out farming": episodes.wait,
        _RANDOM: episodes.random_well_formed(answers, moves),
    }
    for number, answer in enumerate(_constants(subject, answers)):
        players[f"{_CONSTANT} {number}"] = episodes.constant(protocol.format_answer(answer))
    return {**players, **{f"extra {name}": actor for name, actor in extra.items()}}


def _same_call(subject: Subject, tools: Sequence[Tool], moves: Sequence[str]) -> str:
    """Return a call that is made for ever: the expert's first one, or any."""
    with subject.instance() as env:
        inner = env.unwrapped
        protocol = episodes.protocol_of(inner)
        calls = [move for move in moves if protocol.parse(move, tools).calls]
        if calls:
            return calls[0]
        if not tools:
            return moves[0] if moves else "again"
        arguments = episodes.random_arguments(tools[0], seeding.rng(subject.seed, "same call"))
        return protocol.format_call(tools[0].name, arguments)


def _constants(subject: Subject, answers: Sequence[str]) -> tuple[str, ...]:
    """Return answers worth giving always: the most frequent ones, and what people try."""
    counts = Counter(task.answers[0] for task in subject.others if task and task.answers)
    frequent = [answer for answer, _ in counts.most_common(2)]
    return tuple(dict.fromkeys([*frequent, *(["0", "yes"] if answers else [])]))


# -- claims ------------------------------------------------------------------------------------


def _declared(subject: Subject, name: str, default: Any) -> Any:
    with subject.instance() as env:
        return getattr(env.unwrapped, name, default)


def expert_score(inner: Any) -> float:
    """Return the mean outcome that an environment's expert must reach."""
    return float(getattr(inner, "expert_score", 0.95))


def require_expert(outcome: float, least: float) -> None:
    """Raise `ContractError` unless the expert's mean outcome is at least `least`."""
    require(
        outcome >= least,
        f"the expert must reach {least} within the limits (got {outcome:.3f})",
    )


def _require_honest(subject: Subject, played: _Played, expert: _Played | None) -> None:
    null_score = float(_declared(subject, "null_score", 0.0))
    low, _ = played.bounds
    require(
        low <= max(null_score, LUCK),
        f"scores {played.outcome:.3f} (at least {low:.3f}) without trying; "
        f"'null_score' is {null_score}",
    )
    if expert is not None and expert.reward > 0:
        require(
            played.reward < expert.reward,
            f"earns {played.reward:.3f} reward an episode, the expert {expert.reward:.3f}",
        )
    longest = max(len(text) for episode in played.episodes for text in episode.observations)
    require(
        longest < episodes.OVERSIZE_CHARS // 2,
        f"an observation has {longest} characters: bound what is repeated of an action",
    )


def _require_null_score(subject: Subject, played: Mapping[str, _Played]) -> None:
    null_score = float(_declared(subject, "null_score", 0.0))
    require(0 <= null_score <= 1, f"'null_score' must be in [0, 1] (got {null_score!r})")
    reason = _declared(subject, "null_score_reason", "")
    require(
        null_score <= UNDECLARED_NULL_SCORE or bool(reason),
        f"'null_score' is {null_score}: above {UNDECLARED_NULL_SCORE} say why in "
        "'null_score_reason'",
    )
    blind = [p for name, p in played.items() if name == _RANDOM or name.startswith(_CONSTANT)]
    if blind:
        most = max(p.bounds[1] for p in blind)
        require(
            null_score <= most,
            f"'null_score' is {null_score}, but random and constant players reach at most "
            f"{most:.3f} (upper 95 % bound): declare no more than that",
        )


# -- visible answers ---------------------------------------------------------------------------

_NOT_EARNING = ("silent", "echo", "format only", "time-out farming", "oversize")
"""Players whose actions can earn nothing: whatever they read is free."""


def _require_hidden(subject: Subject, played: Sequence[_Played]) -> None:
    """Compare how often a task's own answer can be read with how often another task's can."""
    told = _told(subject)
    texts: dict[str, str] = {}
    golds: dict[str, frozenset[str]] = {}
    for player in played:
        if player.name not in _NOT_EARNING:
            continue
        for episode in player.episodes:
            if episode.task is None or not episode.task.answers:
                continue
            key = episode.task.id
            golds[key] = frozenset(_folded(answer) for answer in episode.task.answers)
            texts[key] = texts.get(key, told) + "\n" + _read_while_running(episode)
    folded = {key: _folded(text) for key, text in texts.items()}
    own = [key for key in folded if any(_shows(folded[key], gold) for gold in golds[key])]
    others = [
        any(_shows(folded[key], gold) for gold in golds[other])
        for key in folded
        for other in golds
        if golds[other].isdisjoint(golds[key])
    ]
    rate = (sum(others) + 1) / (len(others) + 1) if others else 1.0
    chance = episodes.binomial_tail(len(own), len(folded), rate)
    require(
        chance > _CHANCE,
        f"the gold answer can be read in {len(own)} of {len(folded)} tasks before it is earned, "
        f"another task's answer in {rate:.1%}: {own[:3]!r}",
    )


def _told(subject: Subject) -> str:
    with subject.instance() as env:
        inner = env.unwrapped
        tools = episodes.tools_on_offer(inner)
        parts = [getattr(inner, "system_prompt", "")]
        parts += [f"{tool.description} {dict(tool.parameters)!r}" for tool in tools]
    return "\n".join(parts)


def _read_while_running(episode: Episode) -> str:
    is_over = episode.is_terminated or (bool(episode.infos) and "outcome" in episode.infos[-1])
    shown = episode.observations[:-1] if is_over else episode.observations
    results = [
        result.text
        for info in (episode.infos[:-1] if is_over else episode.infos)
        for result in info.get("tool_results", ())
    ]
    return "\n".join([*shown, *results])


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _shows(text: str, answer: str) -> bool:
    if not answer:
        return False
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
