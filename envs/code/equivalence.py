"""What generated functions do, whatever their text: their values on a fixed list of arguments.

`x + 5 + 12` and `x + 17` are one function, `x > 3` and `x >= 4` one condition. Two functions of the
generator that differ anywhere differ on these arguments, of which there are some for each kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from agentgym import seeding

FUNCTION = "f"
Function = Callable[[Any], Any]

_NUMBERS = (*range(-30, 31), 101, -101, 997)
_MANY = 40


def compiled(source: str) -> Function:
    """Return the function that a source of the generator, or a mutant of one, defines."""
    names: dict[str, Any] = {}
    exec(compile(source, "<generated>", "exec"), names)
    return names[FUNCTION]


@functools.lru_cache(maxsize=4096)
def behaviour(source: str, *, takes_list: bool) -> str:
    """Return the values of a function on the arguments of its kind, as one text.

    Example:
        behaviour("def f(x): return x + 5 + 12", takes_list=False) equals that of x + 17.
    """
    return shown_values(compiled(source), probes(takes_list=takes_list))


def shown_values(function: Function, arguments: Iterable[Any]) -> str:
    """Return the values, or what was raised instead, as one text."""
    return repr([_shown(function, argument) for argument in arguments])


@functools.cache
def probes(*, takes_list: bool) -> tuple[Any, ...]:
    """Return the arguments by which functions are told apart, always the same."""
    if not takes_list:
        return _NUMBERS
    rng = seeding.rng("code/functions", "probes")
    many = [[rng.randrange(-20, 21) for _ in range(2 + i % 7)] for i in range(_MANY)]
    # One element more than once, and in both orders.
    return ([], *([n] for n in _NUMBERS), *many, *([*some, some[0]] for some in many[:10]))


def _shown(function: Function, argument: Any) -> str:
    try:
        return repr(function(argument))
    except (ArithmeticError, ValueError, TypeError, IndexError) as error:
        return f"raises {type(error).__name__}"
