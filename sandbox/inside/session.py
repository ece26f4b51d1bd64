"""A Python session in a box: keeps names between the cells that it runs, and calls functions.

It reads messages from standard input: four bytes of length, then a Python literal with `op` (`run`,
`call`) and `marker`. Output goes where the cells print it; the answer follows between markers, as
JSON. This file is handed over as text, with `values.py` in front. It imports built-in modules only
until a cell raises: `ast`, `json` and `traceback` would triple the time that a session takes to
start.
"""

from __future__ import annotations

import builtins
import os
import sys

from agentgym.sandbox.inside.values import decode, encode

try:
    from _json import encode_basestring_ascii as quoted
except ImportError:  # a Python without its accelerators
    from json.encoder import encode_basestring_ascii as quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any
else:
    import _ast as ast

ONLY_AST = 0x400  # ast.PyCF_ONLY_AST


def as_json(value: Any) -> str:
    """Return what `encode` gave as JSON text in ASCII."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ",".join([as_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        pairs = [quoted(key) + ":" + as_json(item) for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    text = repr(value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


class Session:
    """The names of a session and its two private descriptors."""

    def __init__(self) -> None:
        self.requests = os.dup(0)
        self.answers = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # a cell that asks for input finds its end
        os.close(nothing)
        module = type(sys)("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.names = module.__dict__
        self.cells: dict[str, str] = {}

    def serve(self) -> None:
        """Answer messages until the input ends."""
        while True:
            size = self.take(4)
            if len(size) < 4:
                return
            # What the host sends is its own, so that evaluating it is safe.
            request = eval(self.take(int.from_bytes(size, "big")))
            try:
                answer = getattr(self, "do_" + request["op"])(request)
            except RecursionError:
                answer = {"raised": "RecursionError", "text": "nested too deeply"}
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError, AttributeError):
                    continue
            if hasattr(sys, "set_int_max_str_digits"):
                # A number of any length is written; whether it can be read is the host's to say.
                sys.set_int_max_str_digits(0)
            text = request["marker"] + "<" + as_json(answer) + request["marker"] + ">"
            view = memoryview(text.encode("ascii"))
            while view:
                view = view[os.write(self.answers, view) :]

    def take(self, count: int) -> bytes:
        """Return that many bytes, fewer at the end of the input."""
        data = b""
        while len(data) < count:
            chunk = os.read(self.requests, count - len(data))
            if not chunk:
                break
            data += chunk
        return data

    def do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a cell; show the value of a last line that is an expression."""
        name = f"<cell {len(self.cells) + 1}>"
        self.cells[name] = request["code"]
        try:
            tree: Any = compile(request["code"], name, "exec", ONLY_AST, dont_inherit=True)
            last: Any = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec", dont_inherit=True), self.names)
            if last is not None:
                value = eval(compile(last, name, "eval", dont_inherit=True), self.names)
                if value is not None:
                    print(repr(value))
        except BaseException as error:  # noqa: BLE001  whatever a cell raises is its result
            return self.describe(error, name)
        return {}

    def describe(self, error: BaseException, name: str) -> dict[str, Any]:
        """Print a traceback without our own frames; return what was raised."""
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename not in self.cells:
            step = step.tb_next
        try:
            import linecache
            import traceback

            for cell, code in self.cells.items():
                linecache.cache[cell] = (len(code), None, code.splitlines(True), cell)
            traceback.print_exception(type(error), error, step, file=sys.stdout)
            return {"raised": type(error).__name__, "text": str(error)[:500]}
        except BaseException:  # noqa: BLE001  an exception whose own text raises
            return {"raised": type(error).__name__, "text": ""}

    def do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a function that a cell defined."""
        try:
            arguments, keywords = decode(request["arguments"]), decode(request["keywords"])
            function = self.names[request["name"]]
            return {"value": encode(function(*arguments, **keywords))}
        except BaseException as error:  # noqa: BLE001  whatever the function raises is its result
            try:
                text = str(error)[:500]
            except BaseException:  # noqa: BLE001
                text = ""
            return {"raised": type(error).__name__, "text": text}


if __name__ == "__main__":
    Session().serve()
