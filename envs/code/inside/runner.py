"""Runs a test program against a function that lives elsewhere: in another box, behind the host.

It reads messages from standard input: four bytes of length, then JSON. The first has the test
program and the name of the function under test. Each call of that function becomes an answer
`{"call": …}`, upon which the next message brings the value or the exception. The last answer is
`{"passed": …}`. What comes back is made of built-in types alone, so that no object of the agent
ever meets an assertion. This file is handed over as text, with `values.py` in front.
"""

from __future__ import annotations

import builtins
import json
import os
import sys

from agentgym.sandbox.inside.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CandidateError(Exception):
    """The function under test raised something that is no built-in exception."""


class OutOfReachError(BaseException):
    """The function under test can no longer be called; no test may catch this."""


def exception_type(name: str) -> type[Exception]:
    """Return the built-in exception of that name, CandidateError if there is none."""
    kind = getattr(builtins, str(name), None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else CandidateError


class Judge:
    """The conversation with the host."""

    def __init__(self) -> None:
        self.requests = os.dup(0)
        self.answers = os.dup(1)
        self.marker = ""

    def receive(self) -> dict[str, Any]:
        """Return the next message; exit at the end of the input."""
        request = json.loads(self.take(int.from_bytes(self.take(4), "big")))
        self.marker = request["marker"]
        return request

    def take(self, count: int) -> bytes:
        """Return that many bytes."""
        data = b""
        while len(data) < count:
            chunk = os.read(self.requests, count - len(data))
            if not chunk:
                sys.exit(0)
            data += chunk
        return data

    def answer(self, message: dict[str, Any]) -> None:
        """Send an answer to the last message."""
        text = self.marker + "<" + json.dumps(message) + self.marker + ">"
        view = memoryview(text.encode("ascii"))
        while view:
            view = view[os.write(self.answers, view) :]

    def candidate(self, *arguments: Any, **keywords: Any) -> Any:
        """Stand for the function under test."""
        self.answer({"call": [encode(list(arguments)), encode(keywords)]})
        result = self.receive()
        if result.get("is_gone"):
            raise OutOfReachError(result["text"])
        if "raised" in result:
            raise exception_type(result["raised"])(result.get("text", ""))
        return decode(result["value"])

    def run(self) -> None:
        """Run one test program."""
        request = self.receive()
        names: dict[str, Any] = {"__name__": "tests"}
        try:
            exec(compile(request["program"], "<tests>", "exec"), names)
            names[request["function"]] = self.candidate
            names["check"](self.candidate)
        except BaseException as error:  # noqa: BLE001  whatever ends the tests fails them
            text = f"{type(error).__name__}: {error}"
            self.answer({"passed": False, "text": text[:500]})
        else:
            self.answer({"passed": True, "text": ""})


if __name__ == "__main__":
    Judge().run()
