"""A Python session in a box: keeps names between the cells that it runs, and calls functions.

It reads messages from standard input: four bytes of length, then JSON with `op` (`run`, `call`) and
`marker`. Output goes where the cells print it; the answer follows between markers. This file is
handed over as text, with `values.py` in front, and uses the standard library only.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import sys
import traceback
import types

from agentgym.sandbox.inside.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Session:
    """The names of a session and its two private descriptors."""

    def __init__(self) -> None:
        self.requests = os.dup(0)
        self.answers = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # a cell that asks for input finds its end
        os.close(nothing)
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.names = module.__dict__
        self.cells = 0

    def serve(self) -> None:
        """Answer messages until the input ends."""
        while True:
            size = self.take(4)
            if len(size) < 4:
                return
            request = json.loads(self.take(int.from_bytes(size, "big")))
            try:
                answer = getattr(self, "do_" + request["op"])(request)
            except RecursionError:
                answer = {"raised": "RecursionError", "text": "nested too deeply"}
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError, AttributeError):
                    continue
            text = request["marker"] + "<" + json.dumps(answer) + request["marker"] + ">"
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
        self.cells += 1
        name = f"<cell {self.cells}>"
        code = request["code"]
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), self.names)
            if last is not None:
                value = eval(compile(last, name, "eval"), self.names)
                if value is not None:
                    print(repr(value))
        except BaseException as error:  # noqa: BLE001  whatever a cell raises is its result
            return self.describe(error, name)
        return {}

    def describe(self, error: BaseException, name: str) -> dict[str, Any]:
        """Print a traceback without our own frames; return what was raised."""
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != name:
            step = step.tb_next
        try:
            traceback.print_exception(type(error), error, step, file=sys.stdout)
            return {"raised": type(error).__name__, "text": str(error)[:500]}
        except BaseException:  # noqa: BLE001  an exception whose own text raises
            return {"raised": type(error).__name__, "text": ""}

    def do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a function that a cell defined."""
        try:
            arguments = decode(request["arguments"])
            function = self.names[request["name"]]
            return {"value": encode(function(*arguments))}
        except BaseException as error:  # noqa: BLE001  whatever the function raises is its result
            try:
                text = str(error)[:500]
            except BaseException:  # noqa: BLE001
                text = ""
            return {"raised": type(error).__name__, "text": text}


if __name__ == "__main__":
    Session().serve()
