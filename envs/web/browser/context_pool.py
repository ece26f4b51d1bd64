"""Contexts made ahead: while one episode runs, the next one's context and page are got ready.

A context serves one episode and no other; only the making of it, which takes longer than many an
episode, moves out of the way. Where a site allows it, the page is loaded too: that of the episode
before, since a group's episodes, and many a run's, are all on one page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.envs.web.browser.server import TOKEN_HEADER, SiteServer
from agentgym.envs.web.browser.settings import Settings

SPARES_EACH = 2
"""Ready at once: making one takes longer than an episode of one or two actions."""
MOST_PASSED_OVER = 3
"""Then a spare is taken whatever page it has: nobody comes back to that page."""
MAKE_TIMEOUT_S = 6.0
"""For one to be made, page included; 0.2 s by custom. Less than an episode waits for its page."""
_CLOSE_TIMEOUT_S = 3.0
_EPOCH_S = 1_704_110_400
"""What the page's clock shows at the start: 2024-01-01 12:00 UTC."""
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A context that nobody has used, with its one page."""

    context: Any
    """Playwright's context."""
    page: Any
    """Its page: blank, or loaded."""
    path: str | None
    """Path on the site that the page was loaded from; None if it is blank."""
    token: str
    """Token of its session at the server, which has no state yet."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Spare:
    kind: object
    path: str
    task: asyncio.Task[Fresh]
    passed_over: int = 0
    """How often another was taken before it."""

    @property
    def has_failed(self) -> bool:
        done = self.task.done()
        return done and (self.task.cancelled() or self.task.exception() is not None)


class Spares:
    """The spare contexts of one browser, `SPARES_EACH` of each kind. Used in its loop only.

    Args:
        chromium: Returns Playwright's browser.
        server: Knows their tokens.
    """

    def __init__(self, chromium: Callable[[], Any], server: SiteServer) -> None:
        self._chromium = chromium
        self._server = server
        self._spares: list[_Spare] = []

    @property
    def count(self) -> int:
        """Spares that are ready, or being made."""
        return len(self._spares)

    async def take(self, settings: Settings, path: str) -> Fresh:
        """Return a fresh context: a spare one, whatever page it has loaded, or one made now.

        Args:
            settings: How pages are opened.
            path: The page that is wanted: a spare that has it goes before one that is ready, unless
                that was passed over so often that nobody seems to come back to its page.

        Raises:
            TimeoutError: If none could be made in time.
        """
        while found := self._of(_kind(settings)):
            best = _best(found, path)
            self._spares.remove(best)
            try:
                await asyncio.wait([best.task])
            except asyncio.CancelledError:
                self._spares.append(best)  # else its context would be nobody's
                raise
            if not best.has_failed:
                return best.task.result()
        return await self._make(settings, path)

    def prepare(self, settings: Settings, path: str) -> None:
        """Begin to make spares, as many as are missing.

        Args:
            settings: How pages are opened.
            path: The page to load, if the site's are loaded ahead.
        """
        kind = _kind(settings)
        loop = asyncio.get_running_loop()
        for _ in range(SPARES_EACH - len(self._of(kind))):
            task = loop.create_task(self._make(settings, path))
            self._spares.append(_Spare(kind=kind, path=path, task=task))

    async def settled(self) -> None:
        """Wait until those that are being made are there."""
        if self._spares:
            await asyncio.wait([spare.task for spare in self._spares])

    async def end(self) -> None:
        """Let go of those that are being made; the browser's end closes the others."""
        tasks, self._spares = [spare.task for spare in self._spares], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, kind: object) -> list[_Spare]:
        """Return the spares of a kind, without those that failed, which are dropped."""
        self._spares = [spare for spare in self._spares if not spare.has_failed]
        return [spare for spare in self._spares if spare.kind == kind]

    async def _make(self, settings: Settings, path: str) -> Fresh:
        token = self._server.open_session(None)
        async with contextlib.AsyncExitStack() as undo, asyncio.timeout(MAKE_TIMEOUT_S):
            undo.callback(self._server.close_session, token)
            context = await self._context(settings, token)
            undo.push_async_callback(_close, context)
            if settings.clock_step_ms is not None:
                await context.clock.install(time=_EPOCH_S)
                await context.clock.pause_at(_EPOCH_S + 1)
            if settings.loads_ahead:
                await add_script(context, seed=0)
            page = await context.new_page()
            if settings.loads_ahead:
                url = f"http://{settings.host}{path}"
                await load(page, url, is_blank=True, timeout_s=MAKE_TIMEOUT_S)
            undo.pop_all()
        return Fresh(
            context=context, page=page, path=path if settings.loads_ahead else None, token=token
        )

    async def _context(self, settings: Settings, token: str) -> Any:
        width, height = settings.viewport
        making: asyncio.Task[Any] = asyncio.get_running_loop().create_task(
            self._chromium().new_context(
                viewport={"width": width, "height": height},
                extra_http_headers={TOKEN_HEADER: token},
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
                reduced_motion="reduce",
            )
        )
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The driver makes it all the same; nobody would close it.
            making.add_done_callback(_close_made)
            raise


async def _close(context: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await context.close()


_closing: set[asyncio.Task[None]] = set()


def _close_made(made: asyncio.Task[Any]) -> None:
    if made.cancelled() or made.exception() is not None:
        return
    task = asyncio.get_running_loop().create_task(_close(made.result()))
    _closing.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_closing.discard)


def _best(spares: list[_Spare], path: str) -> _Spare:
    def rank(one: _Spare) -> tuple[bool, bool, bool]:
        is_ready = one.task.done()
        return (
            not (is_ready and one.passed_over >= MOST_PASSED_OVER),
            one.path != path,
            not is_ready,
        )

    best = min(spares, key=rank)
    for spare in spares:
        spare.passed_over += spare is not best
    return best


async def add_script(context: Any, *, seed: int) -> None:
    """Have every page of a context begin with ours, by which it is seen and acted on.

    Args:
        context: Playwright's context.
        seed: Seed of the page's own chance.
    """
    await context.add_init_script(f"({_SCRIPT})({seed});")


async def load(page: Any, url: str, *, is_blank: bool, timeout_s: float) -> None:
    """Load a page in the place of the one that is there, so that none is before it to go back to.

    Args:
        page: Playwright's page.
        url: Address.
        is_blank: It holds none yet.
        timeout_s: Time to load in.
    """
    if is_blank:
        await page.goto(url, wait_until="load", timeout=timeout_s * 1000)
        return
    async with page.expect_navigation(url=url, wait_until="load", timeout=timeout_s * 1000):
        await page.evaluate("url => { location.replace(url); }", url)


def _kind(settings: Settings) -> object:
    has_clock = settings.clock_step_ms is not None
    return settings.host, settings.viewport, has_clock, settings.loads_ahead
