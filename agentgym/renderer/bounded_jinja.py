"""A Jinja sandbox whose work and memory are bounded: chat templates are code from elsewhere.

In order: the guards of what makes much out of little, the filters and methods that templates may
use, the rewriting of templates, the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from agentgym.renderer.template_meter import METER, TemplateBoundError, weight

MOST_SOURCE_CHARS = 500_000
"""Of a template; published ones have up to 30,000."""
_MOST_BITS = 4_096
"""Of a whole number."""
_MOST_ARGUMENT = 100_000
"""Of a number that a filter is given: widths, counts, places."""
_MOST_WIDTH = 10_000
"""Of a field that is formatted, and of the format itself."""
_MOST_INDENT = 16
_CALL_STEPS = 4
"""What a call takes beside what it is given."""

FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # recursion without end, too
    SyntaxError,
    TypeError,
    ValueError,
)
"""What the compiling or the rendering of a template may raise."""


# ---------------------------------------------------------------- what makes much out of little


def _replaced(text: str, old: str, new: str, *rest: Any) -> int:
    return len(text) + text.count(str(old)) * len(str(new))


def _joined(separator: str, values: Any) -> int:
    return weight(values) + len(values) * len(str(separator))


def _filter_joined(values: Any, separator: str = "", attribute: Any = None) -> int:
    return _joined(separator, values)


def _formatted(form: str, *values: Any, **named: Any) -> int:
    if len(form) > _MOST_WIDTH or re.search(r"[%:.][^%{}a-zA-Z]*(\d{5}|\*)|\{[^{}]*\{", form):
        raise TemplateBoundError(f"it formats fields wider than {_MOST_WIDTH:,} characters")
    fields = form.count("%") + form.count("{")
    return len(form) + fields * (_MOST_WIDTH + weight((values, named)))


def _indented(text: str, width: int | str = 4, *rest: Any) -> int:
    each = len(width) if isinstance(width, str) else width
    return len(text) + (text.count("\n") + 1) * each


def _summed(values: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise TemplateBoundError("it sums up what are no numbers")
    return 0


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON that is not escaped for HTML, as templates expect it."""
    if max((indent or 0), *map(len, separators or ("", ""))) > _MOST_INDENT:
        raise TemplateBoundError(f"it indents JSON by more than {_MOST_INDENT} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


_GROWTH: Mapping[str, Callable[..., int]] = {
    "replace": _replaced,
    "join": _joined,
    "format": _formatted,
}
"""Method of a text -> the most characters of what it returns."""
_FILTER_GROWTH: Mapping[str, Callable[..., int]] = {
    "replace": _replaced,
    "join": _filter_joined,
    "format": _formatted,
    "indent": _indented,
    "sum": _summed,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILTERS = _words(
    "abs batch capitalize center count d default dictsort e escape first float format groupby "
    "indent int items join last length list lower map max min reject rejectattr replace reverse "
    "round safe select selectattr slice sort string sum title trim truncate unique upper urlencode "
    "wordcount"
)
"""Filters that a template may use: not those that draw by chance or search by heavy patterns."""
_METHODS: Mapping[type, frozenset[str]] = {
    str: _words(
        "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal "
        "isdigit islower isnumeric isspace istitle isupper join lower lstrip partition "
        "removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines "
        "startswith strip swapcase title upper"
    ),
    dict: _words("copy get items keys values"),
    list: _words("copy count index"),
    tuple: _words("count index"),
    int: frozenset(),
    float: _words("is_integer"),
    bytes: frozenset(),
}
"""Kind of value -> the methods that a template may call."""


def _metered_function(
    function: Callable[..., Any], growth: Callable[..., int] | None = None
) -> Callable[..., Any]:
    """Return a filter or test whose arguments and result are paid for."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.spend(1)
        at = hasattr(function, "jinja_pass_arg")  # Jinja's own object stands first
        value, *options = args[at:]
        meter.take(value)
        for option in (*options, *kwargs.values()):
            meter.take(option)
            if isinstance(option, int) and abs(option) > _MOST_ARGUMENT:
                raise TemplateBoundError(f"it gives a filter a number above {_MOST_ARGUMENT:,}")
        if growth is not None:
            value = _whole(value)
            meter.fit(growth(value, *options, **kwargs))
        return meter.made(function(*args[:at], value, *options, **kwargs))

    return call


def _whole(value: Any) -> Any:
    """Return what is made bit by bit as a list, and all else as it is."""
    return list(cast("Iterator[Any]", value)) if isinstance(value, Iterator) else value


# --------------------------------------------------------------------------------- the rewriting

_WEIGHED, _TIED = " weighed", " tied"
"""Filters of the rewriting; with a space in their names, no template can call them."""


class _Rewriting(NodeTransformer):
    """Puts a count into every loop, and a filter around what Jinja gives to no hook."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """Return what stands in the place of a node; what lies in it is rewritten first."""
        self.generic_visit(node)
        match node:
            case nodes.For():
                step: nodes.Expr = nodes.EnvironmentAttribute("step")
                node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
                if node.test is not None:  # what is left out has no turn
                    node.test = nodes.And(step, node.test, lineno=node.lineno)
            case nodes.Concat():
                first, *rest = node.nodes
                return nodes.Filter(first, _TIED, rest, [], None, None, lineno=node.lineno)
            case nodes.Compare():
                _weigh_operands(node)
            case nodes.Getitem() if isinstance(node.arg, nodes.Slice):
                node.node = _weighed(node.node)
            case nodes.List() | nodes.Dict():
                return _weighed(node)
            case nodes.Tuple() if node.ctx == "load":
                return _weighed(node)
            case _:
                pass
        return node


def _weigh_operands(node: nodes.Compare) -> None:
    if isinstance(node.expr, nodes.Const) and node.ops[0].op not in {"in", "notin"}:
        return  # it is looked at as far as the constant goes
    for operand in node.ops:
        is_short = operand.op in {"eq", "ne"} and isinstance(operand.expr, nodes.Const)
        operand.expr = operand.expr if is_short else _weighed(operand.expr)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    is_name = isinstance(node, nodes.Filter) and node.name == _WEIGHED
    if is_name or isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, _WEIGHED, [], [], None, None, lineno=node.lineno)


def _weigh(value: Any) -> Any:
    return METER.get().made(value)


def _tie(*values: Any) -> str:
    """Return values one after the other, as Jinja's `~` does."""
    meter = METER.get()
    for value in values:
        meter.take(value)
    return meter.made("".join(map(str, values)))


def _concat(parts: Iterable[str]) -> str:
    """Return the parts of a template's output as one text."""
    meter = METER.get()
    kept: list[str] = []
    chars = 0
    for part in parts:
        chars += len(part)
        meter.fit(chars)
        kept.append(part)
    return "".join(kept)


# ------------------------------------------------------------------------------- the environment


@pass_context
def _printed(context: Context, value: Any) -> Any:
    """Pay for a value that is printed. Takes the context, so that nothing is printed early."""
    METER.get().take(value)
    return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates are rendered inside `metered()`, and end within its bounds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_concat)

    def __init__(self, **options: Any) -> None:
        # Unoptimised: constants would be worked out while compiling, where nothing is counted.
        super().__init__(optimized=False, finalize=_printed, **options)
        vars(self)["globals"].pop("lipsum")
        own: dict[str, Callable[..., Any]] = {
            name: _metered_function(self.filters[name], _FILTER_GROWTH.get(name))
            for name in _FILTERS
        }
        own["tojson"] = _metered_function(to_json)
        self.filters = {**own, _WEIGHED: _weigh, _TIED: _tie}
        self.tests = {name: _metered_function(test) for name, test in self.tests.items()}

    @property
    def step(self) -> bool:
        """Pay for a turn of a loop. A property, since compiled loops only look at it."""
        METER.get().spend(1)
        return True

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MOST_SOURCE_CHARS:
            raise TemplateBoundError(f"it has more than {MOST_SOURCE_CHARS:,} characters")
        tree = super()._parse(source, name, filename)
        _Rewriting().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may have an attribute; of plain values, only some methods."""
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed form of `str.format`; None for all else."""
        form = super().wrap_str_format(value)
        return form if form is not None and value.__name__ == "format" else None

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what a callable returns; what it is given and what it makes is paid for."""
        meter = METER.get()
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        meter.spend(_CALL_STEPS)
        for value in (*args, *kwargs.values(), owner if isinstance(owner, str) else ""):
            meter.take(value)
        growth = _GROWTH.get(obj.__name__) if isinstance(owner, str) else None
        if growth is not None:
            args = tuple(map(_whole, args))
            meter.fit(growth(owner, *args, **kwargs))
        return meter.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the value of `+`, `*`, `**` or `%`, if it is within the bounds."""
        meter = METER.get()
        if operator == "+":
            return meter.made(left + right)
        if operator == "%" and isinstance(left, str):
            meter.fit(_formatted(left, right))
        elif operator != "%":
            meter.fit(_multiplied(operator, left, right))
        return meter.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an entry; what is looked up by is paid for, since it is hashed."""
        key: object = argument
        if isinstance(key, tuple):
            METER.get().take(argument)
        return super().getitem(obj, argument)


def _multiplied(operator: str, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        power = left.bit_length() * max(right, 0)
        bits = power if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TemplateBoundError(f"it makes a number of more than {_MOST_BITS:,} bits")
        return 0
    if operator == "**" or isinstance(left, float) or isinstance(right, float):
        return 0
    many, count = (left, right) if isinstance(right, int) else (right, left)
    return weight(many) * max(int(count), 0) if isinstance(count, int) else 0


__all__ = ["FAILURES", "BoundedEnvironment"]
