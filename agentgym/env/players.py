"""How the checks play: an actor gives actions, `play` runs one episode and says what happened.

In order: `Episode`, the actors (null players, the expert), `play`, the bound on a mean.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym import seeding
from agentgym.env.contract import Action
from agentgym.records import FinishReason, Json, Task
from agentgym.tool_formats.base import ActionProtocol
from agentgym.tool_formats.plain import PlainText
from agentgym.tool_formats.tools import Tool

DEFAULT_MAX_TURNS = 16
OVERSIZE_CHARS = 200_000
"""Far beyond what any policy writes in one turn."""
_TAIL = 0.025
"""Each side of a 95 % interval."""
_BISECTIONS = 40
"""Halvings of [0, 1]: 10**-12."""
_ROUNDING = 1e-9
"""Sums of outcomes such as thirds are whole up to this."""

Actor = Callable[[Any, str, random.Random], str]
"""(unwrapped environment, last observation, generator) -> the next action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What one episode gave."""

    task: Task | None
    """What was posed."""
    observations: tuple[str, ...]
    """The first one, then one a turn."""
    actions: tuple[str, ...]
    """In order."""
    total_reward: float
    """Sum of `step`'s rewards."""
    outcome: float
    """How far the task was solved, in [0, 1]."""
    is_terminated: bool
    """True if the environment ended it, not a limit."""
    infos: tuple[Mapping[str, Any], ...] = field(default=())
    """One a turn."""


def play(
    env: Any, actor: Actor, *, task: Task | None, seed: int, max_turns: int | None = None
) -> Episode:
    """Return the episode that `actor` plays, within the environment's own bound on turns."""
    inner = env.unwrapped
    options = {"task": task} if task is not None else None
    observation, info = env.reset(seed=seed, options=options)
    rng = seeding.rng(seed, "actor")
    observations, actions, infos = [observation], list[str](), list[Mapping[str, Any]]()
    total, is_terminated, is_truncated = 0.0, False, False
    for _ in range(max_turns if max_turns is not None else turn_bound(inner)):
        action = actor(inner, observation, rng)
        observation, reward, is_terminated, is_truncated, step_info = env.step(action)
        observations.append(observation)
        actions.append(str(action))
        infos.append(step_info)
        total += float(reward)
        if is_terminated or is_truncated:
            break
    return Episode(
        task=info.get("task", task),
        observations=tuple(observations),
        actions=tuple(actions),
        total_reward=total,
        outcome=_outcome(inner, infos, total, is_over=is_terminated or is_truncated),
        is_terminated=is_terminated,
        infos=tuple(infos),
    )


def turn_bound(inner: Any) -> int:
    """Return how many turns an episode may have."""
    limits = getattr(inner, "limits", None)
    bound = getattr(limits, "max_turns", None)
    return bound if bound is not None else DEFAULT_MAX_TURNS


def _outcome(
    inner: Any, infos: Sequence[Mapping[str, Any]], total: float, *, is_over: bool
) -> float:
    if is_over and infos and "outcome" in infos[-1]:
        return float(infos[-1]["outcome"])
    if hasattr(inner, "outcome"):
        return float(inner.outcome())
    # An environment that is not ours states no outcome; its reward is all there is.
    return min(max(total, 0.0), 1.0)


def protocol_of(inner: Any) -> ActionProtocol:
    """Return how actions are written."""
    return getattr(inner, "protocol", PlainText())


def tools_on_offer(inner: Any) -> tuple[Tool, ...]:
    """Return the tools."""
    return tuple(getattr(inner, "tools", ()))


# -- actors ------------------------------------------------------------------------------------


def replaying(actions: Sequence[str]) -> Actor:
    """Return an actor that plays a fixed list of actions, and its last one from then on."""
    left = list(actions)

    def act(env: Any, observation: str, rng: random.Random) -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    return act


def constant(action: str) -> Actor:
    """Return an actor that says one thing, whatever it reads."""
    return lambda env, observation, rng: action


def expert(env: Any, observation: str, rng: random.Random) -> str:
    """Act as the environment's scripted expert."""
    return env.expert()


def echo(env: Any, observation: str, rng: random.Random) -> str:
    """Say what was read."""
    return observation


def echo_as_answer(env: Any, observation: str, rng: random.Random) -> str:
    """Answer with what was read."""
    return protocol_of(env).format_answer(observation)


def oversize(env: Any, observation: str, rng: random.Random) -> str:
    """Answer with far too much."""
    unit = "".join(rng.choice("0123456789 abcdefghij\n") for _ in range(97))
    return protocol_of(env).format_answer(unit * (OVERSIZE_CHARS // len(unit)))


def wait(env: Any, observation: str, rng: random.Random) -> str:
    """Spend turns with words that mean nothing, until a limit ends the episode."""
    return "Let me think about it."


def random_well_formed(answers: Sequence[str], moves: Sequence[str]) -> Actor:
    """Return an actor that writes well-formed actions without looking.

    Args:
        answers: Gold answers of other tasks: what an answer looks like.
        moves: Actions of the expert on other tasks: what an action looks like.
    """

    def act(env: Any, observation: str, rng: random.Random) -> str:
        tools = tools_on_offer(env)
        choices = ["tool"] * bool(tools) + ["answer"] * bool(answers) + ["move"] * bool(moves)
        match rng.choice(choices or ["words"]):
            case "tool":
                chosen = rng.choice(tools)
                return protocol_of(env).format_call(chosen.name, random_arguments(chosen, rng))
            case "answer":
                return protocol_of(env).format_answer(rng.choice(answers))
            case "move":
                return rng.choice(moves)
            case _:
                words = observation.split() or ["yes"]
                return protocol_of(env).format_answer(rng.choice(words))

    return act


def random_arguments(tool: Tool, rng: random.Random) -> dict[str, Json]:
    """Return random arguments that fit a tool's schema."""
    definitions = tool.parameters.get("$defs", {})
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = set(tool.parameters.get("required", ()))
    return {
        name: _random_value(schema, definitions, rng)
        for name, schema in properties.items()
        if name in required or rng.random() < 0.5
    }


_SAMPLES: Mapping[str, Callable[[random.Random], Json]] = {
    "string": lambda rng: rng.choice(["1", "7*8", "print(1)", "yes", "the", "a b c"]),
    "integer": lambda rng: rng.randrange(-3, 10),
    "number": lambda rng: rng.uniform(-3, 10),
    "boolean": lambda rng: rng.random() < 0.5,
    "null": lambda rng: None,
}


def _random_value(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], rng: random.Random
) -> Json:
    if "$ref" in schema:
        schema = definitions[str(schema["$ref"]).rpartition("/")[2]]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return _random_value(rng.choice(schema["anyOf"]), definitions, rng)
    kind = schema.get("type", "string")
    if kind == "array":
        items: Mapping[str, Any] = schema.get("items", {})
        return [_random_value(items, definitions, rng) for _ in range(rng.randrange(3))]
    if kind == "object":
        required = schema.get("required", ())
        fields: Mapping[str, Any] = schema.get("properties", {})
        return {name: _random_value(fields[name], definitions, rng) for name in required}
    return _SAMPLES.get(str(kind), _SAMPLES["string"])(rng)


# -- bounds ------------------------------------------------------------------------------------


def binomial_tail(hits: int, count: int, rate: float) -> float:
    """Return the probability of at least `hits` successes among `count` at `rate` each."""
    return math.fsum(
        math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(hits, count + 1)
    )


def exact_bounds(total: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval (Clopper and Pearson 1934) of the mean of `count` outcomes.

    With few episodes it is wide where other intervals are not: one lucky hit in three is no proof.
    Outcomes between 0 and 1 are rounded to whole successes, outwards.

    Args:
        total: Sum of the outcomes, each in [0, 1].
        count: Number of outcomes.
    """
    if count == 0:
        return 0.0, 1.0
    least, most = math.floor(total + _ROUNDING), math.ceil(total - _ROUNDING)
    low = _rate_at(lambda rate: binomial_tail(least, count, rate) - _TAIL) if least > 0 else 0.0
    if most >= count:
        return low, 1.0
    return low, _rate_at(lambda rate: binomial_tail(most + 1, count, rate) - (1 - _TAIL))


def _rate_at(rising: Callable[[float], float]) -> float:
    """Return where a function that rises from below 0 to above 0 on [0, 1] is 0."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def as_cut_off(action: str) -> Action:
    """Return `action` as a policy gives it that was cut off by length."""
    return Action(action, finish_reason=FinishReason.LENGTH)
