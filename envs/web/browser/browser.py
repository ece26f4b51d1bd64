"""Browsers: one Chromium and its driver in a thread of its own, shared by contexts of episodes.

In order: the errors, `Browser`, `BrowserPool` and the pool of this process.

The driver's calls are coroutines of one event loop in the browser's thread; episodes hand them over
from whatever thread or loop they run in and wait for a bounded time. So a browser belongs to no
caller's thread, a hung driver cannot hold one, and episodes that run together share one browser.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym.envs.web.browser.context_pool import Spares
from agentgym.envs.web.browser.processes import children_of, command_of, groups_below, kill_tree
from agentgym.envs.web.browser.server import SiteServer
from agentgym.errors import InfrastructureError

T = TypeVar("T")
_log = logging.getLogger(__name__)

SEATS_EACH = 16
"""Contexts of one browser: beyond that its single driver process is what episodes wait for."""
START_TIMEOUT_S = 60.0
"""From nothing to a browser that answers; 0.1 to 0.7 s on an idle machine."""
CLOSE_TIMEOUT_S = 5.0
"""For a browser to go in peace; then its processes are killed."""
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.02
_REAP_POLLS = 100

_ARGUMENTS = (
    "--disable-gpu",
    # Nothing outside is reached, whatever a page asks for: names under .test lead to our server.
    "--host-resolver-rules=MAP *.test 127.0.0.1:{port}, MAP * ~NOTFOUND",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-features=Translate,MediaRouter,OptimizationHints,PaintHolding",
)


class BrowserError(InfrastructureError):
    """The browser, its driver or a page of it failed; the agent did nothing wrong."""


class BrowserHungError(BrowserError):
    """The browser did not answer in time."""


class BrowserGoneError(BrowserError):
    """The browser is not there any more: it crashed, or was killed or closed."""


class PageCrashedError(BrowserError):
    """The process of one page is gone; the browser goes on."""


class Browser:
    """One Chromium, its driver and the server of its pages.

    Args:
        executable: Path of the browser.
        start_timeout_s: Time to start in.
    """

    def __init__(self, *, executable: str, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._pid = os.getpid()
        self.server = SiteServer()
        self.spares = Spares(lambda: self._chromium, self.server)
        self.seats = 0
        self.process_ids: tuple[int, ...] = ()
        """Processes started for it."""
        self._groups: tuple[int, ...] = ()
        """Process groups of the browser: a stopped page outlives the browser that started it."""
        self._chromium: Any = None
        self._executable = executable
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_condemned = False
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="agentgym-browser", daemon=True)
        self._thread.start()
        try:
            self._started.result(start_timeout_s)
        except concurrent.futures.TimeoutError:
            self.kill()
            raise BrowserHungError(
                f"Chromium did not start in {start_timeout_s:g} s ({executable})"
            ) from None

    @property
    def chromium(self) -> Any:
        """Playwright's browser; to be used in its own loop only."""
        return self._chromium

    @property
    def is_usable(self) -> bool:
        """Whether new contexts can be had."""
        return (
            self._is_ours
            and not self._is_condemned
            and self._thread.is_alive()
            and self._chromium is not None
            and self._chromium.is_connected()
        )

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Return what a coroutine returns in the browser's loop, from any other thread.

        Raises:
            BrowserHungError: If it takes longer, or `timeout_s` is not above 0: then nothing is
                started.
            BrowserGoneError: If the browser is closed, or goes meanwhile.
            PageCrashedError: If the page's process is gone.
            BrowserError: If the driver says that it failed otherwise.
        """
        if timeout_s <= 0:
            coroutine.close()
            raise BrowserHungError("no time is left for the browser")
        if not self._is_ours or self._is_condemned or self._loop.is_closed():
            coroutine.close()
            raise BrowserGoneError("the browser was closed")
        future = asyncio.run_coroutine_threadsafe(_translated(coroutine), self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise BrowserHungError(f"the browser did not answer in {timeout_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise BrowserGoneError("the browser was closed") from None

    def close(self) -> None:
        """End it: in peace within a bound, then by force. May be called more than once."""
        if not self._is_ours:
            return
        if self._thread.is_alive() and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self.kill()

    def condemn(self) -> None:
        """Have no new context opened in it; the pool ends it before it gives out another one."""
        self._is_condemned = True

    def kill(self) -> None:
        """End its processes by force, stopped and hung ones too; calls in flight fail."""
        self._is_condemned = True
        if not self._is_ours:
            return
        kill_tree(self.process_ids, groups=self._groups, timeout_s=_KILL_TIMEOUT_S)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_KILL_TIMEOUT_S)

    @property
    def _is_ours(self) -> bool:
        """False in a forked child: the browser, and the thread that serves it, are the parent's."""
        return os.getpid() == self._pid

    # -- in the browser's own thread -------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._note)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            error = runner.run(self._outcome())
        # Handed to who waits for the start; later there is nobody left to tell.
        if error is not None and not self._started.done():
            self._started.set_exception(BrowserError(f"Chromium did not start: {error}"))

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what nobody waited for: calls that were in flight when the driver went."""
        _log.debug("browser: %s", context.get("exception") or context.get("message"))

    async def _outcome(self) -> BaseException | None:
        life = self._loop.create_task(self._live())
        await asyncio.wait([life])
        return life.exception()

    async def _live(self) -> None:
        # By name: types must hold where the package is missing too.
        async_playwright: Any = importlib.import_module("playwright.async_api").async_playwright

        await self.server.start()
        before = set(children_of(os.getpid()))
        playwright = await async_playwright().start()
        self.process_ids = tuple(
            pid
            for pid in children_of(os.getpid())
            if pid not in before and "run-driver" in command_of(pid)
        )
        try:
            arguments = [text.format(port=self.server.port) for text in _ARGUMENTS]
            self._chromium = await playwright.chromium.launch(
                executable_path=self._executable, args=arguments
            )
            self._groups = tuple(group for pid in self.process_ids for group in groups_below(pid))
            self._started.set_result(None)
            await self._stop.wait()
        finally:
            self._is_condemned = True
            await self._end(playwright)

    async def _end(self, playwright: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S - 1):
                await self.spares.end()
                await self.server.stop()
                with contextlib.suppress(driver_error()):
                    if self._chromium is not None:
                        await self._chromium.close()
                    await playwright.stop()
        kill_tree(self.process_ids, groups=self._groups, timeout_s=_KILL_TIMEOUT_S)
        # The loop hears of the end of its child, and closes the pipes to it, in its own time.
        for _ in range(_REAP_POLLS):
            await asyncio.sleep(_POLL_S)
            if not set(self.process_ids) & set(children_of(os.getpid())):
                break
        await asyncio.sleep(_POLL_S)


async def _translated(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns; errors of the driver become ours."""
    try:
        return await coroutine
    except TimeoutError as error:
        raise BrowserHungError("the browser did not finish in time") from error
    except driver_error() as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        if "crash" in text:
            raise PageCrashedError(text) from error
        if "closed" in text:
            raise BrowserGoneError(text) from error
        raise BrowserError(text) from error


def driver_error() -> type[Exception]:
    """Return the class of the driver's errors."""
    error: type[Exception] = importlib.import_module("playwright.async_api").Error
    return error


class BrowserPool:
    """Browsers of one process: started when needed, full ones left alone, broken ones replaced.

    They live while somebody has a seat or a hold: an environment holds them between its episodes.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._browsers: list[Browser] = []
        self._holds = 0

    def take(self, executable: str) -> Browser:
        """Return a browser with a seat for one more context; it must be given back.

        Raises:
            BrowserError: If none can be started.
        """
        with self._own_lock():
            for browser in [one for one in self._browsers if not one.is_usable]:
                self._browsers.remove(browser)
                browser.kill()
            free = [one for one in self._browsers if one.seats < SEATS_EACH]
            if free:
                chosen = min(free, key=lambda one: one.seats)
            else:
                chosen = Browser(executable=executable)
                self._browsers.append(chosen)
            chosen.seats += 1
            return chosen

    def give_back(self, browser: Browser) -> None:
        """Free a seat; without a hold, a browser ends with its last one."""
        with self._own_lock():
            browser.seats -= 1
        self._end_idle()

    def hold(self) -> None:
        """Keep browsers without episodes for the next ones, until `release`."""
        with self._own_lock():
            self._holds += 1

    def release(self) -> None:
        """Take a hold back; with the last one the browsers without episodes end."""
        with self._own_lock():
            self._holds = max(self._holds - 1, 0)
        self._end_idle()

    @property
    def browsers(self) -> tuple[Browser, ...]:
        """Those that live."""
        with self._own_lock():
            return tuple(self._browsers)

    def close(self) -> None:
        """End every browser, those in use too."""
        with self._own_lock():
            browsers, self._browsers = self._browsers, []
        for browser in browsers:
            browser.close()

    def _end_idle(self) -> None:
        with self._own_lock():
            idle = [one for one in self._browsers if one.seats == 0 and self._holds == 0]
            self._browsers = [one for one in self._browsers if one not in idle]
        for browser in idle:
            browser.close()

    def _own_lock(self) -> threading.Lock:
        """Return the lock; in a forked child, begin with one that nobody holds, and no browsers."""
        if os.getpid() != self._pid:
            self._pid, self._lock, self._browsers = os.getpid(), threading.Lock(), []
            self._holds = 0
        return self._lock


POOL = BrowserPool()
"""The browsers of this process."""


def close_browsers() -> None:
    """End every browser of this process; the next episode starts a new one."""
    POOL.close()


atexit.register(close_browsers)
