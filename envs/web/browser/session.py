"""`WebSession`: the browser context of one episode, with its tabs; what is done and seen in it.

Each public method hands one coroutine to the browser and waits for a bounded time. What the agent
did wrong comes back in the view's `error`; what the browser did wrong is raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agentgym.envs.web.browser import browser as browsers
from agentgym.envs.web.browser.browser import (
    Browser,
    BrowserError,
    BrowserGoneError,
    BrowserHungError,
    BrowserPool,
    PageCrashedError,
    driver_error,
)
from agentgym.envs.web.browser.context_pool import add_script, load
from agentgym.envs.web.browser.events import Answer, PageEvents
from agentgym.envs.web.browser.keys import check_key
from agentgym.envs.web.browser.settings import Settings
from agentgym.envs.web.browser.view import View, look, read_nodes

T = TypeVar("T")

OPEN_TRIES = 3
CLOSE_TIMEOUT_S = 3.0
_SETTLE_S = 5.0
"""For a page that was asked for to load."""
MOST_TABS = 6
_TYPED_CHARS = 60
"""Longer texts are inserted at once: each key costs three messages."""
_LOADED_MS = 100
_POLL_S = 0.002
_MOST_STEPS_BACK = 3
"""Then the site's first page is where an agent that left goes on."""
_UNREACHABLE = "that page cannot be reached"
_NOT_LEFT = "the page was not left"


class WebSession:
    """One fresh context in a shared browser.

    Args:
        settings: How pages are opened.
        executable: Path of the browser.
        state: What the site is handed with each request.
        seed: Seed of the page's own chance; 0 where pages are loaded ahead.
        pool: Browsers to share; None for this process's own.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        executable: str,
        state: Any = None,
        seed: int = 0,
        pool: BrowserPool | None = None,
    ) -> None:
        self.probed: Any = None
        """Value of the probe with the last view."""
        self._settings = settings
        self._pool = pool or browsers.POOL
        self._seed = seed
        self._context: Any = None
        self._tabs: list[Any] = []
        self._front = 0
        self._tabs_before = 0
        self._front_before = 0
        self._has_crashed = False
        self._events = PageEvents()
        self._is_open = True
        self._browser: Browser = self._pool.take(executable)
        self._browser.server.mount(settings.host, settings.site)
        self._state = state
        self._token: str | None = None

    # -- for environments ------------------------------------------------------------------

    def open(self, path: str, *, then: str | None = None) -> View:
        """Open the first page in a fresh context and return the view of it.

        Args:
            path: Path on the site.
            then: JavaScript to run when it is loaded.

        Raises:
            BrowserError: If none of a few tries succeeds.
        """
        for attempt in range(OPEN_TRIES):
            try:
                return self._run(self._open(path, then), self._settings.open_timeout_s)
            except BrowserError:
                if attempt == OPEN_TRIES - 1 or not self._close_context():
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def act(self, deed: Callable[[WebSession], Awaitable[str]]) -> View:
        """Do something and return the view after it.

        Args:
            deed: One of the actions of this module's class; returns why it had no effect, or "".

        Raises:
            BrowserError: If the browser failed.
        """
        return self._run(self._act(deed), self._settings.step_timeout_s)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Return the value of JavaScript in the tab in front. Not for agents."""
        return self._run(self._page.evaluate(script, argument), self._settings.step_timeout_s)

    def screenshot(self) -> bytes:
        """Return the tab in front as PNG."""
        return self._run(self._page.screenshot(), self._settings.step_timeout_s)

    def close(self) -> None:
        """Close the context and give the browser back; never raises, never waits for long."""
        if not self._is_open:
            return
        self._is_open = False
        self._close_context()
        self._pool.give_back(self._browser)

    @property
    def browser(self) -> Browser:
        """The shared browser."""
        return self._browser

    # -- actions: to be given to `act` -----------------------------------------------------

    async def click(self, element: int) -> str:
        """Click an element with the mouse."""
        place = await self._call("locate", element)
        if "error" in place:
            return place["error"]
        await self._page.mouse.click(place["x"], place["y"])
        return ""

    async def type(self, element: int, text: str) -> str:
        """Replace what a field holds by keys."""
        place = await self._call("edit", element)
        if "error" in place:
            return place["error"]
        if place.get("isSet"):
            return (await self._call("setValue", element, text)).get("error", "")
        keyboard = self._page.keyboard
        if not text:
            if not place["isEmpty"]:
                await keyboard.press("Delete")
        elif len(text) <= _TYPED_CHARS and text.isprintable():
            await keyboard.type(text)
        else:
            await keyboard.insert_text(text)
        return ""

    async def select(self, element: int, option: str) -> str:
        """Choose an option of a list."""
        done = await self._call("choose", element, option)
        if "options" in done:
            return f"{done['error']} {option[:60]!r}; it has: {', '.join(done['options'][:60])}"
        return done.get("error", "")

    async def press(self, key: str) -> str:
        """Press a key, or keys together, wherever the focus is."""
        wrong = check_key(key)
        if wrong:
            return wrong
        if len(key) == 1 and not key.isascii():
            await self._page.keyboard.insert_text(key)  # on no key of the driver's keyboard
        else:
            await self._page.keyboard.press(key)
        return ""

    async def scroll(self, direction: str, element: int | None) -> str:
        """Scroll an element, or the page."""
        return (await self._call("scroll", element, direction)).get("error", "")

    async def back(self) -> str:
        """Go to the page before this one."""
        if not await self._page.evaluate("() => window.navigation.canGoBack"):
            return "there is no page to go back to"
        return await self._go_back()

    async def tab(self, number: int) -> str:
        """Bring a tab to the front."""
        if not 1 <= number <= len(self._tabs):
            return f"there is no tab {number}: there are {len(self._tabs)}"
        self._front = number - 1
        await self._page.bring_to_front()
        return ""

    async def handle_dialog(self, *, accepts: bool, text: str) -> str:
        """Answer the next question of the page so; it comes of a later action."""
        self._events.answer = Answer(accepts=accepts, text=text)
        return ""

    # -- in the browser's loop -------------------------------------------------------------

    @property
    def _page(self) -> Any:
        if self._has_crashed or not self._tabs:
            raise PageCrashedError("the page crashed")
        return self._tabs[min(self._front, len(self._tabs) - 1)]

    async def _open(self, path: str, then: str | None) -> View:
        settings = self._settings
        fresh = await self._browser.spares.take(settings, path)
        self._browser.spares.prepare(settings, path)
        self._context, self._token, page = fresh.context, fresh.token, fresh.page
        self._browser.server.bind(fresh.token, self._state)
        if not settings.loads_ahead:
            await add_script(self._context, seed=self._seed)
        self._events.watch(self._context)
        self._context.on("page", self._add_tab)
        self._add_tab(page)
        self._front = 0
        if fresh.path != path:
            url = f"http://{settings.host}{path}"
            timeout_s = 0.9 * settings.open_timeout_s
            await load(page, url, is_blank=fresh.path is None, timeout_s=timeout_s)
        if then is not None:
            await page.evaluate(then)
        await self._tick(_LOADED_MS)
        return await self._view("")

    async def _go_back(self) -> str:
        """Go back; return why the page before cannot be shown, or ""."""
        going = self._page.go_back(wait_until="load", timeout=_SETTLE_S * 1000)
        try:
            await self._events.unless_stays(going)
        except driver_error() as error:
            # Such as the answer to a form, which the browser would have to send again.
            if "net::ERR_" not in str(error):
                raise
            return _UNREACHABLE
        return _NOT_LEFT if self._events.stays else ""

    def _add_tab(self, page: Any) -> None:
        if page.context is not self._context:
            return  # of a try that was given up
        self._tabs.append(page)
        page.on("close", self._drop_tab)
        page.on("crash", self._crash)
        self._events.watch_page(page)

    def _drop_tab(self, page: Any) -> None:
        if page in self._tabs:
            self._tabs.remove(page)

    def _crash(self, page: Any) -> None:
        if page in self._tabs:
            self._has_crashed = True

    async def _act(self, deed: Callable[[WebSession], Awaitable[str]]) -> View:
        self._events.begin()
        self._tabs_before, self._front_before = len(self._tabs), self._front
        error = await deed(self)
        await self._tick(self._settings.clock_step_ms or 0)
        return await self._view(error)

    async def _tick(self, milliseconds: int) -> None:
        if self._settings.clock_step_ms is not None and milliseconds:
            await self._context.clock.run_for(milliseconds)

    async def _view(self, error: str) -> View:
        """Return what is seen once the page has come to rest."""
        deadline = time.monotonic() + _SETTLE_S
        seen = await self._snapshot()
        if seen["opened"]:
            await self._go_to_new_tab(deadline)
            seen = await self._snapshot()
        while seen["isLeaving"]:
            if time.monotonic() > deadline:
                raise BrowserHungError("a page that was asked for did not load")
            seen = await (self._stayed() if self._events.stays else self._loaded(deadline))
        if not self._is_at_home() or len(self._tabs) > MOST_TABS:
            error = await self._leave()
            seen = await self._snapshot()
        return await self._as_view(seen, error)

    async def _snapshot(self) -> dict[str, Any]:
        return await look(self._page, self._settings)

    async def _loaded(self, deadline: float) -> dict[str, Any]:
        """Return the first look at the document that replaces the one in front."""
        left_ms = max(deadline - time.monotonic(), 0.001) * 1000
        await self._page.wait_for_load_state("load", timeout=left_ms)
        seen = await self._snapshot()
        if seen["isLeaving"]:
            await asyncio.sleep(_POLL_S)  # the old document is still there
        return seen

    async def _stayed(self) -> dict[str, Any]:
        """Return a look at the document that was to be left and is still there."""
        await self._call("stay")
        return await self._snapshot()

    async def _go_to_new_tab(self, deadline: float) -> None:
        while len(self._tabs) <= self._tabs_before and not self._events.stays:
            if time.monotonic() > deadline:
                raise BrowserHungError("a tab that was asked for did not open")
            await asyncio.sleep(_POLL_S)
        if len(self._tabs) > self._tabs_before:
            self._front = len(self._tabs) - 1
            left_ms = max(deadline - time.monotonic(), 0.001) * 1000
            coming = self._page.wait_for_load_state("load", timeout=left_ms)
            await self._events.unless_stays(coming)
        if self._events.stays:
            await self._drop_new_tabs()

    async def _drop_new_tabs(self) -> None:
        """Close the tabs that were opened for a page that never comes."""
        for page in self._tabs[self._tabs_before :]:
            await page.close()
        self._front = self._front_before

    async def _leave(self) -> str:
        """Go back to where the agent may be; return what it is told."""
        if len(self._tabs) > self._tabs_before:
            await self._drop_new_tabs()
            return _UNREACHABLE
        for _ in range(_MOST_STEPS_BACK):
            await self._go_back()
            if self._is_at_home():
                return _UNREACHABLE
        await self._page.goto(f"http://{self._settings.host}/", timeout=_SETTLE_S * 1000)
        return _UNREACHABLE

    def _is_at_home(self) -> bool:
        parts = urlsplit(self._page.url)
        return parts.scheme == "http" and parts.netloc == self._settings.host

    async def _as_view(self, seen: dict[str, Any], error: str) -> View:
        self.probed = seen["probed"]
        titles = [await page.title() for page in self._tabs] if len(self._tabs) > 1 else []
        return View(
            url=self._page.url,
            tabs=tuple(titles or [seen["title"]]),
            tab=self._front,
            nodes=read_nodes(seen["nodes"]),
            focus=seen["focus"],
            error=error,
            notices=self._events.notices,
            is_cut=seen["isCut"],
        )

    async def _call(self, name: str, *arguments: Any) -> dict[str, Any]:
        script = f"arguments => window.__agentgym.{name}(...arguments)"
        return await self._page.evaluate(script, list(arguments))

    # -- ends ------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        if self._has_crashed or not self._is_open:
            coroutine.close()
            if self._has_crashed:
                raise PageCrashedError("the page crashed")
            raise BrowserGoneError("the session is closed")
        try:
            return self._browser.run(coroutine, timeout_s=timeout_s)
        except BrowserGoneError:
            # It may take the driver a moment to say so itself.
            self._browser.condemn()
            raise

    def _close_context(self) -> bool:
        """Close the context; end the browser if it does not. Return whether it lives on."""
        if not self._browser.is_usable:
            return False
        try:
            self._browser.run(self._drop_context(), timeout_s=CLOSE_TIMEOUT_S)
        except BrowserHungError:
            # Other episodes of this browser fail with it: a browser that cannot close a context
            # would keep the page, its process and its memory for ever.
            self._browser.kill()
        except BrowserError:
            pass  # closed already, or going down by itself
        return self._browser.is_usable

    async def _drop_context(self) -> None:
        # In the browser's loop: a try that was given up may be about to set what is dropped here.
        context, self._context = self._context, None
        if self._token is not None:
            self._browser.server.close_session(self._token)
        self._tabs.clear()
        self._front, self._has_crashed = 0, False
        if context is not None:
            await context.close()
