"""Contexts made ahead: while one episode runs, the next one's context and page are got ready.

A context serves one episode and no other; only the making of it, which takes longer than many an
episode, moves out of the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym.envs.web.server import TOKEN_HEADER, SiteServer
from agentgym.envs.web.settings import Settings

WARM_TIMEOUT_MS = 5_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A context that nobody has used, with its one page."""

    context: Any
    """Playwright's context."""
    page: Any
    """Its page: blank, or with what the site's pages share loaded once."""
    token: str
    """Token of its session at the server, which has no state yet."""


class Spares:
    """The spare contexts of one browser: at most one of each kind. Used in the browser's loop only.

    Args:
        chromium: Returns Playwright's browser.
        server: Knows their tokens.
    """

    def __init__(self, chromium: Callable[[], Any], server: SiteServer) -> None:
        self._chromium = chromium
        self._server = server
        self._tasks: dict[object, asyncio.Task[Fresh]] = {}

    @property
    def count(self) -> int:
        """Spares that are ready, or being made."""
        return len(self._tasks)

    async def take(self, settings: Settings) -> Fresh:
        """Return a fresh context: the spare one, or one made now."""
        task = self._tasks.pop(_kind(settings), None)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                return task.result()
        return await self._make(settings)

    def prepare(self, settings: Settings) -> None:
        """Begin to make a spare, unless there is one."""
        kind = _kind(settings)
        if kind not in self._tasks:
            self._tasks[kind] = asyncio.get_running_loop().create_task(self._make(settings))

    async def settled(self) -> None:
        """Wait until those that are being made are there."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def end(self) -> None:
        """Let go of those that are being made; the browser's end closes the others."""
        tasks, self._tasks = tuple(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, settings: Settings) -> Fresh:
        token = self._server.open_session(None)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(self._server.close_session, token)
            context = await self._context(settings, token)
            undo.push_async_callback(context.close)
            page = await context.new_page()
            if settings.warm_path is not None:
                url = f"http://{settings.host}{settings.warm_path}"
                await page.goto(url, wait_until="load", timeout=WARM_TIMEOUT_MS)
            undo.pop_all()
        return Fresh(context=context, page=page, token=token)

    async def _context(self, settings: Settings, token: str) -> Any:
        width, height = settings.viewport
        return await self._chromium().new_context(
            viewport={"width": width, "height": height},
            extra_http_headers={TOKEN_HEADER: token},
            accept_downloads=False,
            service_workers="block",
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
        )


def _kind(settings: Settings) -> object:
    return settings.host, settings.viewport, settings.warm_path
