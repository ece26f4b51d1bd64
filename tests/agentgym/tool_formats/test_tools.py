"""Tools: schemas from types and docstrings, and the check of arguments."""

import dataclasses
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Literal

import pydantic
import pytest
from typing_extensions import TypedDict

from agentgym.errors import EnvError, ToolError
from agentgym.tool_formats.tools import checked_arguments, make_tool, tool, tools_of, unknown_tool


class Unit(StrEnum):
    METRE = "m"
    MILE = "mi"


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Box(pydantic.BaseModel):
    corner: Point
    label: str | None = None


class Options(TypedDict, total=False):
    deep: bool


def flat(query: str, top_k: int = 3, ratio: float = 0.5, exact: bool = False) -> str:
    """Search the corpus.

    Two lines of description.

    Args:
        query: Words to look for,
            in any order.
        top_k (int): Number of results.

    Returns:
        Text.
    """
    return query


def nested(
    box: Box,
    unit: Unit,
    mode: Literal["fast", "slow"],
    points: list[Point],
    counts: dict[str, int],
    size: Size | None = None,
    options: Options | None = None,
) -> str:
    """Do."""
    return ""


FLAT, NESTED = make_tool(flat), make_tool(nested)


def test_schema_of_flat_arguments() -> None:
    assert FLAT.name == "flat"
    assert FLAT.description == "Search the corpus.\n\nTwo lines of description."
    assert FLAT.parameter_names == ("query", "top_k", "ratio", "exact")
    assert FLAT.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "Words to look for, in any order."},
            "top_k": {"type": "integer", "default": 3, "description": "Number of results."},
            "ratio": {"type": "number", "default": 0.5},
            "exact": {"type": "boolean", "default": False},
        },
    }


def test_schema_of_nested_arguments() -> None:
    properties: Mapping[str, Any] = NESTED.parameters["properties"]
    assert properties["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert properties["points"]["items"] == {"$ref": "#/$defs/Point"}
    assert properties["counts"]["additionalProperties"] == {"type": "integer"}
    definitions = NESTED.parameters["$defs"]
    assert definitions["Unit"] == {"enum": ["m", "mi"], "type": "string"}
    assert definitions["Point"]["required"] == ["x"]
    assert definitions["Box"]["required"] == ["corner"]
    assert NESTED.parameters["required"] == ["box", "unit", "mode", "points", "counts"]
    assert "title" not in str(NESTED.parameters)


GOOD: dict[str, Any] = {
    "box": {"corner": {"x": 1, "y": 2}},
    "unit": "mi",
    "mode": "slow",
    "points": [{"x": 3}],
    "counts": {"a": 4},
}


def test_checked_arguments_become_the_declared_types() -> None:
    checked = checked_arguments(NESTED, {**GOOD, "size": 2, "options": {"deep": True}})
    assert checked == {
        "box": Box(corner=Point(1, 2)),
        "unit": Unit.MILE,
        "mode": "slow",
        "points": [Point(3, 0)],
        "counts": {"a": 4},
        "size": Size.LARGE,
        "options": {"deep": True},
    }


def test_arguments_that_were_not_given_stay_out() -> None:
    assert checked_arguments(FLAT, {"query": "x"}) == {"query": "x"}


# C7: no value changes its type on the way.
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "x", "top_k": "3"}, "'top_k' must be an integer (got '3')"),
        ({"query": "x", "top_k": "2026-01-15"}, "'top_k' must be an integer (got '2026-01-15')"),
        ({"query": "x", "top_k": 3.5}, "'top_k' must be an integer (got 3.5)"),
        ({"query": "x", "top_k": True}, "'top_k' must be an integer (got True)"),
        (
            {"query": "x", "exact": "maybe"},
            "'exact' must be a boolean, true or false (got 'maybe')",
        ),
        ({"query": "x", "exact": 1}, "'exact' must be a boolean, true or false (got 1)"),
        ({"query": 3106}, "'query' must be a string (got 3106)"),
        ({"query": None}, "'query' must be a string (got None)"),
        ({}, "'query' is missing"),
        ({"query": "x", "topk": 1}, "'topk' is not an argument"),
    ],
)
def test_bad_argument_names_field_and_type_c6_c7(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        checked_arguments(FLAT, arguments)
    assert problem in str(caught.value)
    assert str(caught.value).endswith("(arguments: query, top_k, ratio, exact)")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"unit": "km"}, "'unit' must be one of 'm' or 'mi' (got 'km')"),
        ({"mode": "medium"}, "'mode' must be one of 'fast' or 'slow' (got 'medium')"),
        ({"points": [{"x": 1}, {"y": 1}]}, "'points.1.x' is missing"),
        ({"points": {"x": 1}}, "'points' must be an array"),
        ({"counts": [1]}, "'counts' must be an object (got [1])"),
        ({"box": {"corner": {"x": "a"}}}, "'box.corner.x' must be an integer (got 'a')"),
    ],
)
def test_bad_nested_argument_names_its_path_c6(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        checked_arguments(NESTED, {**GOOD, **change})
    assert problem in str(caught.value)


def test_whole_number_is_a_number() -> None:
    assert checked_arguments(FLAT, {"query": "x", "ratio": 1}) == {"query": "x", "ratio": 1.0}


def test_shown_values_are_short() -> None:
    with pytest.raises(ToolError) as caught:
        checked_arguments(FLAT, {"query": "x", "top_k": "9" * 10_000})
    assert len(str(caught.value)) < 200


def test_half_a_surrogate_pair_is_a_bad_argument() -> None:
    with pytest.raises(ToolError, match="bad arguments for flat"):
        checked_arguments(FLAT, {"query": "\ud800"})


def test_argument_names_may_be_those_of_pydantic() -> None:
    def odd(json: str, copy: int, model_config: bool) -> str:
        """Take names that a model would reserve."""
        return json

    arguments = {"json": "a", "copy": 1, "model_config": True}
    assert checked_arguments(make_tool(odd), arguments) == arguments


@pytest.mark.parametrize("missing", [True, False])
def test_tool_without_types_says_which_argument(missing: bool) -> None:
    def untyped(query) -> str:
        """Do."""
        return query

    def starred(*words: str) -> str:
        """Do."""
        return ""

    with pytest.raises(
        EnvError, match="'query' needs a type" if missing else r"\*words has no schema"
    ):
        make_tool(untyped if missing else starred)


def test_tools_of_gives_marked_methods_in_order_base_first() -> None:
    class Base:
        @tool
        def first(self) -> str:
            """One."""
            return "1"

        @tool
        def second(self) -> str:
            """Two."""
            return "2"

        def unmarked(self) -> str:
            return ""

    class Derived(Base):
        @tool
        async def third(self) -> str:
            """Three."""
            return "3"

        def second(self) -> str:
            # Without the mark the tool is taken away.
            return "none"

    tools = tools_of(Derived())
    assert [(t.name, t.is_async) for t in tools] == [("first", False), ("third", True)]
    assert tools[0].function() == "1"


def test_unknown_tool_lists_the_known_c10() -> None:
    assert unknown_tool("flatt", (FLAT, NESTED)) == (
        "unknown tool 'flatt' (did you mean 'flat'?); the tools are: flat, nested"
    )
    assert unknown_tool("x", ()) == "unknown tool 'x'; the tools are: none"
