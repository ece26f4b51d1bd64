"""Small faults in Python functions: one comparison, operator or number changed at a time.

A function that returns nothing is the last resort. `mutants` lists every changed version of a
source in a fixed order, so that a number names one.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mult,),
    ast.Div: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
}


def mutants(source: str) -> Iterator[str]:
    """Yield every version of `source` with one small fault, in a fixed order; the coarsest last.

    Raises:
        SyntaxError: If `source` is not Python.
    """
    tree = ast.parse(source)
    prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    nodes = list(enumerate(ast.walk(tree)))
    nodes.sort(key=lambda entry: isinstance(entry[1], ast.Return))
    for position, node in nodes:
        # A string that stands alone is a docstring; changing it changes nothing.
        for variant in range(0 if id(node) in prose else _variants(node)):
            changed = copy.deepcopy(tree)
            target = next(n for at, n in enumerate(ast.walk(changed)) if at == position)
            _change(target, variant)
            yield ast.unparse(changed)


def _variants(node: ast.AST) -> int:
    """Return in how many ways a node can be changed."""
    if isinstance(node, ast.Compare):
        return sum(len(_COMPARISONS.get(type(op), ())) for op in node.ops[:1])
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return len(_OPERATORS.get(type(node.op), ()))
    if isinstance(node, ast.BoolOp):
        return 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return 1
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            return 1
        if isinstance(node.value, int | float):
            return 2
        return 1 if isinstance(node.value, str) else 0
    if isinstance(node, ast.Return):
        return 1 if node.value is not None else 0
    return 0


def _change(node: ast.AST, variant: int) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = _COMPARISONS[type(node.ops[0])][variant]()
        case ast.BinOp() | ast.AugAssign():
            node.op = _OPERATORS[type(node.op)][variant]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)  # not not x
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float() as number):
            node.value = number + (1, -1)[variant]
        case ast.Constant(value=str() as text):
            node.value = f"{text}!"
        case ast.Return():
            node.value = ast.Constant(value=None)
        case _:
            raise ValueError(f"nothing to change in {type(node).__name__}")
