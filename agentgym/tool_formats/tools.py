"""Tools: a function with a schema from its types and docstring, and the check of its arguments.

`tool` marks a method, `make_tool` reads a function, `tools_of` collects the marked methods of an
object, `checked_arguments` validates what the agent wrote, `result_text` writes what it reads.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypeVar, cast

import pydantic
import pydantic_core

# pydantic takes typing.TypedDict from Python 3.12 on only.
from typing_extensions import TypedDict

from agentgym.errors import EnvError, ToolError, nearest
from agentgym.records.text import readable

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__agentgym_tool__"
_MAX_PROBLEMS = 3
"""Problems of one bad call that are shown; more would only fill the context."""
_MAX_SHOWN_CHARS = 60

# What pydantic calls an expectation, in the words of the JSON schema that the agent was shown.
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "a boolean, true or false",
    "bool_parsing": "a boolean, true or false",
    "string_type": "a string",
    "list_type": "an array",
    "tuple_type": "an array",
    "set_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool on offer."""

    name: str
    """As the agent writes it."""
    description: str
    """First lines of the docstring."""
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    function: Callable[..., Any]
    """What runs; sync or async."""
    is_async: bool = False
    """True if `function` returns an awaitable."""

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the arguments, in the order of the signature."""
        return tuple(self.parameters.get("properties", {}))


def tool(function: Function) -> Function:
    """Mark a method as a tool: its name, types and docstring are what the agent is told.

    Types may be str, int, float, bool, Literal, enums, Optional, list, dict, TypedDict, dataclasses
    and pydantic models, nested. Arguments are described under `Args:` of the docstring. A tool
    answers with what it returns, raises `ToolError` with what the agent should read, and may return
    a `Reply` to end the episode.

    Example:
        @tool
        def calculator(self, expression: str) -> str:
            return str(evaluate(expression))
    """
    setattr(function, _MARK, True)
    return function


def make_tool(function: Callable[..., Any], *, name: str | None = None) -> Tool:
    """Return the tool of a function or bound method.

    Raises:
        EnvError: If an argument has no type, or one that has no schema.
    """
    signature = _signature(_plain(function))
    return Tool(
        name=name or function.__name__,
        description=signature.description,
        parameters=signature.schema,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
    )


def tools_of(owner: object) -> tuple[Tool, ...]:
    """Return the methods of `owner` that are marked with `@tool`, base classes first, in the order
    of their definition.
    """
    names: dict[str, None] = {}
    for cls in reversed(type(owner).__mro__):
        names.update((name, None) for name, value in vars(cls).items() if hasattr(value, _MARK))
    bound = (getattr(owner, name) for name in names)
    # An override without the mark takes the tool away.
    return tuple(make_tool(method) for method in bound if hasattr(method, _MARK))


def checked_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the function takes them; values are checked, never changed in type.

    Raises:
        ToolError: If they do not fit the schema; the message names each field and what it expects.
    """
    return _signature(_plain(tool.function)).check(tool.name, arguments)


def unknown_tool(name: str, tools: Sequence[Tool]) -> str:
    """Return what an agent reads that called a tool which is not there."""
    names = [tool.name for tool in tools]
    known = ", ".join(names) if names else "none"
    return f"unknown tool {_shown(name)}{nearest(name, names)}; the tools are: {known}"


def result_text(value: object) -> str:
    """Return a tool's result as the agent reads it: text as it is, None as nothing, else JSON."""
    if isinstance(value, str):
        return readable(str(value))
    if value is None:
        return ""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants").decode()
    except pydantic_core.PydanticSerializationError:
        # Half a surrogate pair somewhere inside; anything else raises again.
        text = json.dumps(value, ensure_ascii=False, default=pydantic_core.to_jsonable_python)
        return readable(text)


@dataclass(frozen=True, slots=True)
class _Signature:
    """What is read from a function once."""

    description: str
    schema: Mapping[str, Any]
    adapter: pydantic.TypeAdapter[dict[str, Any]]

    def check(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments; JSON rules, so that an enum may be written as its value."""
        try:
            text = json.dumps(dict(arguments), allow_nan=False)
            return self.adapter.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            raise ToolError(self._explain(name, error)) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"bad arguments for {name}: not JSON ({error})") from None

    def _explain(self, name: str, error: pydantic.ValidationError) -> str:
        problems = [
            _problem(cast("Mapping[str, Any]", item)) for item in error.errors(include_url=False)
        ]
        fields = ", ".join(self.schema.get("properties", {})) or "none"
        shown = "; ".join(dict.fromkeys(problems[:_MAX_PROBLEMS]))
        return f"bad arguments for {name}: {shown} (arguments: {fields})"


def _problem(item: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "arguments"
    kind = str(item["type"])
    if kind == "missing":
        return f"'{path}' is missing"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"'{path}' is not an argument"
    context: Mapping[str, Any] = item.get("ctx", {})
    if kind in {"literal_error", "enum"}:
        expected = f"one of {context.get('expected')}"
    else:
        expected = _EXPECTED.get(kind, str(item["msg"]))
    return f"'{path}' must be {expected} (got {_shown(item['input'])})"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.__func__ if isinstance(function, types.MethodType) else function


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> _Signature:
    doc = inspect.getdoc(function) or ""
    described = _argument_docs(doc)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise EnvError(
                f"tool {function.__qualname__}: *{parameter.name} has no schema; name each argument"
            )
        if parameter.annotation is parameter.empty:
            raise EnvError(
                f"tool {function.__qualname__}: the argument '{parameter.name}' needs a type"
            )
        fields[parameter.name] = _field(parameter, described.get(parameter.name))
    return _Signature(_description(doc), *_schema(function, fields))


def _field(parameter: inspect.Parameter, about: str | None) -> Any:
    """Return the type of a TypedDict's field: description, and default if there is one."""
    if parameter.default is parameter.empty:
        return Annotated[parameter.annotation, pydantic.Field(description=about)]
    extra: dict[str, Any] = {}
    if isinstance(parameter.default, str | int | float | bool | None):
        extra["default"] = parameter.default
    field = pydantic.Field(description=about, json_schema_extra=extra)
    return NotRequired[Annotated[parameter.annotation, field]]


def _schema(
    function: Callable[..., Any], fields: dict[str, Any]
) -> tuple[Mapping[str, Any], pydantic.TypeAdapter[dict[str, Any]]]:
    # A TypedDict and not a model: any argument name is allowed, and what was not given stays out.
    arguments: Any = cast("Any", TypedDict)(function.__name__, fields)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    try:
        adapter: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(arguments)
        schema = adapter.json_schema()
    except (pydantic.PydanticUserError, NameError, TypeError) as error:
        raise EnvError(f"tool {function.__qualname__}: a type has no schema ({error})") from error
    return _without_titles(schema), adapter


def _without_titles(node: Any) -> Any:
    """Drop pydantic's generated titles: they repeat the names and cost the agent tokens."""
    if isinstance(node, dict):
        items = cast("dict[str, Any]", node).items()
        return {
            key: {name: _without_titles(sub) for name, sub in value.items()}
            if key in {"properties", "$defs"}
            else _without_titles(value)
            for key, value in items
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(node, list):
        return [_without_titles(item) for item in cast("list[Any]", node)]
    return node


_SECTION = re.compile(
    r"^(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Source):\s*$", re.M
)
_ARGUMENT = re.compile(r"^(?P<indent>\s+)(?P<name>\w+)\s*(?:\([^)]*\))?:\s*(?P<text>.*)$")


def _description(doc: str) -> str:
    head = _SECTION.split(doc, maxsplit=1)[0]
    return "\n".join(line.rstrip() for line in head.strip().splitlines())


def _argument_docs(doc: str) -> dict[str, str]:
    """Return name -> text of the section `Args:` of a Google docstring."""
    parts = _SECTION.split(doc)
    body = next((parts[i + 1] for i in range(1, len(parts), 2) if parts[i].startswith("Arg")), "")
    found: dict[str, str] = {}
    indent, current = "", ""
    for line in body.splitlines():
        match = _ARGUMENT.match(line)
        if match is not None and (not indent or match["indent"] == indent):
            indent, current = match["indent"], match["name"]
            found[current] = match["text"].strip()
        elif current and line.strip():
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found
