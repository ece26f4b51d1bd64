"""The typed registry of parts: what a slot is, what a part needs, which parameters it takes.

In order: `Slot`, `Need`, `Part`, the decorator `part`, `find`, and `check_parameters`. A part's
positional arguments are data; its keyword-only arguments are the parameters that a preset must
give, all of them (no part has a default).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import pydantic
from torch import Tensor

from agentgym.errors import nearest

Width = float | Tensor
"""A clip width: a number from the preset, or `[batch, time]` where a bounds part widened it."""
LowWidth = Annotated[Width, pydantic.Field(gt=0, le=1)]
HighWidth = Annotated[Width, pydantic.Field(gt=0)]
AboveZero = Annotated[float, pydantic.Field(gt=0)]
AtLeastZero = Annotated[float, pydantic.Field(ge=0)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = Annotated[int, pydantic.Field(gt=0)]
DegreesLost = Annotated[int, pydantic.Field(ge=0, le=1)]
"""What a preset's number must be: a value outside is refused when the preset is loaded."""


class Slot(StrEnum):
    """The places of an objective, in the order in which a step goes through them."""

    SAMPLER = "sampler"
    ROLLOUT = "rollout"
    ROWS = "rows"
    PROBE = "probe"
    REWARD = "reward"
    MIXER = "mixer"
    FILTER = "filter"
    OP = "op"
    COMBINE = "combine"
    CRITIC = "critic"
    SPREAD = "spread"
    RESHAPE = "reshape"
    ANCHOR = "anchor"
    RATIO = "ratio"
    CORRECTION = "correction"
    BOUNDS = "bounds"
    GATE = "gate"
    AGGREGATION = "aggregation"
    REGULARIZER = "regularizer"
    GROUP_OBJECTIVE = "group_objective"
    HOOK = "hook"
    SCHEDULE = "schedule"
    CONTROLLER = "controller"


class Need(StrEnum):
    """What a part must be given beside the batch; the loader asks for the union."""

    PROXIMAL = "proximal"
    REFERENCE = "reference"
    TEACHER = "teacher"
    ENTROPY = "entropy"
    VALUES = "values"
    TOP_K = "top_k"
    SUM_PI_SQ = "sum_pi_sq"
    BELIEF = "belief"
    GROUP = "group"
    """Two or more trajectories of a task."""
    CLIP_WIDTHS = "clip_widths"
    """A gate with `clip_low` and `clip_high`."""
    GRADIENT_NORM = "gradient_norm"
    """The norm of an extra backward on declared coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A registered function: where it goes, what it needs, which parameters it takes."""

    slot: Slot
    name: str
    function: Callable[..., Any]
    needs: frozenset[Need]
    traits: frozenset[str]
    """Words that checks and stages read, such as "weighted" (a gate on the score) or "at_end" (a
    reward that stands for the rest of the episode)."""
    parameters: Mapping[str, Any]
    """Name of each keyword-only argument and its annotation."""
    needs_of: Callable[[Mapping[str, Any]], tuple[Need, ...]] | None = None
    """Further needs, which depend on the parameters."""
    problem_of: Callable[[Mapping[str, Any]], str | None] | None = None
    """What is wrong with the parameters together, or with one that no bound describes."""

    def all_needs(self, parameters: Mapping[str, Any]) -> frozenset[Need]:
        """Return what the part needs with these parameters."""
        further = self.needs_of(parameters) if self.needs_of is not None else ()
        return self.needs | frozenset(further)

    @property
    def summary(self) -> str:
        """Return the first line of the docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


_PARTS: dict[tuple[Slot, str], Part] = {}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def part(
    slot: str,
    *,
    name: str | None = None,
    needs: tuple[Need, ...] = (),
    needs_of: Callable[[Mapping[str, Any]], tuple[Need, ...]] | None = None,
    problem_of: Callable[[Mapping[str, Any]], str | None] | None = None,
    traits: tuple[str, ...] = (),
) -> Callable[[_Function], _Function]:
    """Register the decorated function for a slot, under its own name unless another is given.

    Raises:
        ValueError: If the name is taken, or a parameter of the function has a default.
    """

    def register(function: _Function) -> _Function:
        key = (Slot(slot), name or function.__name__)
        if key in _PARTS:
            raise ValueError(f"part {key[1]!r} of slot {slot!r} is registered already")
        hints = typing.get_type_hints(function, include_extras=True)
        parameters: dict[str, Any] = {}
        for argument in inspect.signature(function).parameters.values():
            if argument.kind is not inspect.Parameter.KEYWORD_ONLY:
                continue
            if argument.default is not inspect.Parameter.empty:
                raise ValueError(
                    f"parameter {argument.name!r} of part {key[1]!r} has a default; defaults "
                    "live in the preset's YAML file"
                )
            parameters[argument.name] = hints[argument.name]
        _PARTS[key] = Part(
            slot=key[0],
            name=key[1],
            function=function,
            needs=frozenset(needs),
            traits=frozenset(traits),
            parameters=parameters,
            needs_of=needs_of,
            problem_of=problem_of,
        )
        return function

    return register


def range_problem(parameters: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the accepted range [low, high] of a part, if anything."""
    low, high = parameters["low"], parameters["high"]
    return None if low < high else f"key 'low' must be below 'high', {high!r} (got {low!r})"


@functools.cache
def load_parts() -> None:
    """Import every module of this package once, so that its parts are registered."""
    package = importlib.import_module("agentgym.trainers.parts")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def names(slot: Slot) -> tuple[str, ...]:
    """Return the names of a slot's parts, sorted."""
    load_parts()
    return tuple(sorted(name for place, name in _PARTS if place is slot))


def hint(word: str, known: Iterable[str]) -> str:
    """Return the closest known name, or all of them where none is close."""
    choices = sorted(known)
    return nearest(word, choices) or f" (known: {', '.join(choices) or 'none'})"


def find(slot: Slot, name: str) -> Part:
    """Return a part.

    Raises:
        LookupError: If the slot has no part of that name; the message has the nearest one.
    """
    load_parts()
    found = _PARTS.get((slot, name))
    if found is None:
        raise LookupError(f"unknown {slot.value} part {name!r}{hint(name, names(slot))}")
    return found


@functools.cache
def _reader(annotation: Any) -> Any:
    """Return what converts a preset's value to a parameter's type; a width is a number there."""
    if typing.get_origin(annotation) is Annotated:
        kind, *bounds = typing.get_args(annotation)
        if kind == Width:
            return pydantic.TypeAdapter(Annotated[float, *bounds])
    return pydantic.TypeAdapter(float if annotation == Width else annotation)


def check_parameters(
    found: Part, given: Mapping[str, object]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the converted parameters and what is wrong with them, one sentence each."""
    problems = [
        f"unknown key {key!r}{hint(key, found.parameters)}"
        for key in given
        if key not in found.parameters
    ]
    values: dict[str, Any] = {}
    for name, annotation in found.parameters.items():
        if name not in given:
            problems.append(f"key {name!r} is missing")
            continue
        try:
            values[name] = _reader(annotation).validate_python(given[name])
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            is_text = first["type"] == "string_type"
            fix = "; in two pairs of quotes it is text: '\"…\"'" if is_text else ""
            problems.append(f"key {name!r}: {first['msg']} (got {given[name]!r}){fix}")
    if not problems and found.problem_of is not None:
        wrong = found.problem_of(values)
        problems.extend([wrong] if wrong is not None else [])
    return values, tuple(problems)
