"""The pages of the package miniwob as a site: files as they are, with a policy against new script.

Some pages write what is typed into themselves as HTML. So each page may run its own script, told
by its hash, and no other: not what an agent types, not handlers in attributes, not addresses that
are script.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import mimetypes
import re
from pathlib import Path

from agentgym.envs.web.browser.server import Request, Response
from agentgym.errors import EnvError

HOST = "miniwob.test"
_INLINE = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_KEPT = {"Cache-Control": "max-age=86400"}
"""Within one context: the next one starts with nothing."""
_NOT_FOUND = Response(status=404, body=b"no such file", content_type="text/plain")


@functools.cache
def html_folder() -> Path:
    """Return the folder of the package's pages, without importing the package."""
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise EnvError("the package miniwob is not installed")
    return Path(found.origin).parent / "html"


@functools.cache
def page_names() -> tuple[str, ...]:
    """Return the name of every page of `miniwob/`, sorted."""
    return tuple(sorted(path.stem for path in (html_folder() / "miniwob").glob("*.html")))


def respond(request: Request) -> Response:
    """Return a file of the package."""
    return _file(request.path)


@functools.lru_cache(maxsize=1024)
def _file(path: str) -> Response:
    root = html_folder().resolve()
    found = (root / path.lstrip("/")).resolve()
    if not found.is_relative_to(root) or not found.is_file():
        return _NOT_FOUND
    body = found.read_bytes()
    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    if found.suffix != ".html":
        return Response(body=body, content_type=kind, headers=_KEPT)
    headers = {"Content-Security-Policy": _policy(body)}
    return Response(body=body, content_type="text/html; charset=utf-8", headers=headers)


def _policy(body: bytes) -> str:
    # A parser turns line ends into \n before it hashes a script.
    texts = [text.replace(b"\r\n", b"\n") for text in _INLINE.findall(body)]
    hashes = " ".join(map(_hash, texts))
    # jQuery sets a handler `t` to see what becomes of it; jscolor reads its options by eval.
    allowed = f"'unsafe-hashes' {_hash(b't')}" + (" 'unsafe-eval'" if b"jscolor" in body else "")
    return (
        f"script-src 'self' {hashes} {allowed}; frame-src 'self'; object-src 'none'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'"
    )


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
