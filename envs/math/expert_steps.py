"""How far an expression has been worked out by calls of the one-operation calculator."""

from __future__ import annotations

from fractions import Fraction

from agentgym.envs.math.expressions import (
    Expression,
    Number,
    Operation,
    evaluate,
    literal,
    operations,
)

_COMMUTATIVE = "+*"


class Reduction:
    """The operations of one expression, each either worked out or not.

    An operation is ready when its operands are numbers or worked out already. Calls that compute
    no ready operation leave the state as it is, so wrong ones cost nothing but their turn.

    Example:
        Of 12+37*48 the product is ready; after `use(37*48)` the sum is, as 12+1776.
    """

    def __init__(self, expression: Expression) -> None:
        self.root = expression
        self._values = {node: evaluate(node) for node in operations(expression)}
        self._worked_out: set[Operation] = set()

    @property
    def is_complete(self) -> bool:
        """True if the whole expression is worked out."""
        return isinstance(self.root, Number) or self.root in self._worked_out

    def next_call(self) -> str | None:
        """Return the first ready operation as a call, `12+1776`; None if there is none left."""
        ready = next(iter(self._ready()), None)
        if ready is None:
            return None
        return (
            f"{literal(self._value(ready.left))}{ready.symbol}{literal(self._value(ready.right))}"
        )

    def use(self, call: Operation) -> bool:
        """Mark what `call` works out, and return whether the solution needed that.

        Args:
            call: One operation on two numbers, with the operands in either order where that makes
                no difference.
        """
        matches = [node for node in self._ready() if self._computes(call, node)]
        self._worked_out.update(matches)
        return bool(matches)

    def _ready(self) -> list[Operation]:
        waiting = [node for node in self._values if node not in self._worked_out]
        return [n for n in waiting if self._is_known(n.left) and self._is_known(n.right)]

    def _is_known(self, node: Expression) -> bool:
        return isinstance(node, Number) or node in self._worked_out

    def _value(self, node: Expression) -> Fraction:
        return node.value if isinstance(node, Number) else self._values[node]

    def _computes(self, call: Operation, node: Operation) -> bool:
        if call.symbol != node.symbol:
            return False
        written = (evaluate(call.left), evaluate(call.right))
        needed = (self._value(node.left), self._value(node.right))
        return written == needed or (node.symbol in _COMMUTATIVE and written == needed[::-1])
