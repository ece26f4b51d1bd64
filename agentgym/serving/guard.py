"""Runs the module of a server so that each of its paths but /health asks for the server's key.

    VLLM_API_KEY=… python guard.py vllm.entrypoints.openai.api_server ARGUMENTS

vLLM's own key guards /v1 alone, and not the paths that pause, reset and change weights. This file
is run by the interpreter that has vLLM, where this package need not be: it needs Python alone.
"""

from __future__ import annotations

import hmac
import os
import runpy
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MIDDLEWARE = "agentgym_guard.KeyGuard"
"""What vLLM's `--middleware` is given: a module of this name is there before it is looked for."""
_VARIABLE = "VLLM_API_KEY"
_OPEN = "/health"
_REFUSAL = b'{"error": "this server asks for its key: Authorization: Bearer KEY"}'

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class KeyGuard:
    """ASGI middleware that lets through who brings the key, and whoever asks for /health.

    Args:
        app: What answers then.
    """

    def __init__(self, app: _App) -> None:
        self._app = app
        self._wanted = f"Bearer {os.environ[_VARIABLE]}".encode()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer, or refuse with status 401."""
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and scope["path"] == _OPEN) or self._knows(scope):
            await self._app(scope, receive, send)
        elif kind == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _knows(self, scope: _Message) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


def main() -> None:
    """Run the module that the first argument names, with the others."""
    if not os.environ.get(_VARIABLE):
        raise SystemExit(f"{_VARIABLE} must hold the server's key (it is empty)")
    module = sys.argv.pop(1)
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, whose modules are not the server's
    sys.modules[MIDDLEWARE.partition(".")[0]] = sys.modules["__main__"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
