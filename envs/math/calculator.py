"""The two calculators: one operation a call, for arithmetic; whole expressions, for word problems.

Both are exact, and a mistake is a `ToolError` whose message the agent reads.
"""

from __future__ import annotations

import re

from agentgym.envs.math.expressions import Number, Operation, evaluate, parse
from agentgym.envs.math.rationals import format_number, parse_number
from agentgym.errors import ToolError

MAX_CHARS = 700
"""Two operands of the greatest length with their signs and parentheses."""
_OPERAND = r"[0-9.]+|-[0-9.]+|\(\s*[+-]?[0-9.]+(?:\s*/\s*[0-9.]+)?\s*\)"
_ONE_OPERATION = re.compile(rf"\s*({_OPERAND})\s*([-+*/×·÷])\s*({_OPERAND})\s*")
_READ_AS = {"×": "*", "·": "*", "÷": "/"}
_USAGE = "write one operation on two numbers, such as 37*48 or (7/3)-2"


def read_operation(text: str) -> Operation:
    """Return the single operation on two numbers that `text` is.

    Fractions as operands stand in parentheses, negative numbers may: `(7/3)*(-5)`.

    Raises:
        ToolError: If it is anything else, a longer expression among it.
    """
    match = _ONE_OPERATION.fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None:
        raise ToolError(_USAGE)
    left, right = (parse_number(match[i].strip("() ")) for i in (1, 3))
    if left is None or right is None:
        raise ToolError(_USAGE)
    symbol = _READ_AS.get(match[2], match[2])
    return Operation(symbol=symbol, left=Number(value=left), right=Number(value=right))


def calculate_one(text: str) -> str:
    """Return the result of one operation on two numbers.

    Example:
        calculate_one("37*48") is "1776", calculate_one("7/3") is "7/3".

    Raises:
        ToolError: If `text` is not one operation, divides by zero or grows too large.
    """
    operation = read_operation(text)
    return format_number(evaluate(operation))


def calculate(text: str) -> str:
    """Return the result of a whole expression.

    Example:
        calculate("(1+2)*3/4") is "9/4".

    Raises:
        ToolError: If `text` is not an expression, divides by zero or grows too large.
    """
    return format_number(evaluate(parse(text)))
