"""Contexts and pages made ahead: one episode each, the same start however it came about."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("playwright", reason="needs the extra web")

from agentgym.envs.web.browser import context_pool
from agentgym.envs.web.browser.browser import BrowserHungError, BrowserPool
from agentgym.envs.web.browser.context_pool import SPARES_EACH
from agentgym.envs.web.browser.server import Request, Response
from agentgym.envs.web.browser.session import WebSession
from agentgym.envs.web.browser.settings import Settings

pytestmark = pytest.mark.service
OpenPages = Callable[..., WebSession]

PAGE = "<title>t</title><button>fine</button>"


class Ahead:
    """A site of four pages whose first pages may be loaded ahead; it knows what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[int] = set()
        """Numbers of the requests, from 0, that are answered by hanging up."""

    def __call__(self, request: Request) -> Response:
        number = len(self.asked)
        self.asked.append(request.path)
        if number in self.broken:
            raise ConnectionResetError
        body = f"<title>{request.path}</title><p>Time <script>document.write(Date.now())</script>"
        return Response(body=body.encode())


def open_ahead(pages: OpenPages, site: Ahead, path: str, **settings: Any) -> WebSession:
    """Open a page, wait for what is made ahead, and close; return the closed session."""
    session = pages("", site=site, clock_step_ms=500, **settings)
    title = session.open(path).tabs
    assert title == (path,)
    # However it came: at the same time, and with nothing before it.
    assert session.evaluate("() => document.body.innerText") == "Time 1704110401000"
    assert session.act(lambda page: page.back()).error == "there is no page to go back to"
    session.browser.run(session.browser.spares.settled(), timeout_s=20)
    session.close()
    return session


def test_context_made_ahead_serves_one_episode_only(pages: OpenPages, pool: BrowserPool) -> None:
    """Three episodes in turn: each has a context of its own, the last two were made ahead."""
    seen: list[object] = []
    for _ in range(3):
        session = pages(PAGE, pool=pool)
        session.open("/")
        browser = session.browser
        browser.run(browser.spares.settled(), timeout_s=20)
        contexts = list(browser.chromium.contexts)
        assert len(contexts) == 1 + SPARES_EACH == 3
        seen.append(session._context)
        session.close()
    assert len({id(context) for context in seen}) == 3


def test_context_made_ahead_that_fails_is_made_anew(pages: OpenPages, pool: BrowserPool) -> None:
    session = pages(PAGE, pool=pool)
    session.open("/")
    browser = session.browser

    async def break_spare() -> None:
        for spare in browser.spares._spares:
            spare.task.cancel()
            await asyncio.gather(spare.task, return_exceptions=True)

    browser.run(break_spare(), timeout_s=20)
    session.close()
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert again.act(lambda page: page.click(1)).error == ""


def test_page_is_loaded_ahead_for_the_next_episode(pages: OpenPages, pool: BrowserPool) -> None:
    """The first loads its own and two; each further one only that in the place of its own."""
    site = Ahead()
    counts: list[int] = []
    for _ in range(3):
        open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
        counts.append(len(site.asked))
    assert counts == [3, 4, 5]
    assert set(site.asked) == {"/a"}


def test_other_page_than_was_loaded_ahead(pages: OpenPages, pool: BrowserPool) -> None:
    site = Ahead()
    open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
    open_ahead(pages, site, "/b", pool=pool, loads_ahead=True)
    # Its own in the place of /a, and the next one's.
    assert site.asked == ["/a", "/a", "/a", "/b", "/b"]
    # Of the two that are ready, /a and /b, the one that is wanted.
    open_ahead(pages, site, "/b", pool=pool, loads_ahead=True)
    assert site.asked[5:] == ["/b"]
    open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
    assert site.asked[6:] == ["/a"]


def test_page_that_did_not_load_ahead_is_loaded_then(pages: OpenPages, pool: BrowserPool) -> None:
    site = Ahead()
    site.broken = {1, 2}
    open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
    assert len(site.asked) == 3
    open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
    # What was left of the failed ones is gone with its context.
    (browser,) = pool.browsers
    assert len(browser.chromium.contexts) == browser.spares.count == browser.server.live_sessions


def test_spare_that_is_waited_for_in_vain_stays_one(pages: OpenPages, pool: BrowserPool) -> None:
    """Pages after the first do not come yet; who gives up waiting leaves no context of nobody's."""
    gate = asyncio.Event()
    asked: list[str] = []

    async def respond(request: Request) -> Response:
        asked.append(request.path)
        if len(asked) > 1:
            await gate.wait()
        return Response(body=b"<title>here</title>")

    first = pages("", site=respond, pool=pool, loads_ahead=True)
    first.open("/")
    second = pages("", site=respond, pool=pool, loads_ahead=True, open_timeout_s=0.2)
    with pytest.raises(BrowserHungError):
        second.open("/")
    browser = first.browser

    async def open_gate() -> None:
        gate.set()

    browser.run(open_gate(), timeout_s=20)
    browser.run(browser.spares.settled(), timeout_s=20)
    assert browser.spares.count == SPARES_EACH
    assert len(browser.chromium.contexts) == browser.server.live_sessions == 1 + SPARES_EACH
    assert second.open("/").tabs == ("here",)


def test_spare_whose_making_hangs_is_given_up(
    pages: OpenPages, pool: BrowserPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver never answers for the two contexts after the first; the browser stays good."""
    monkeypatch.setattr(context_pool, "MAKE_TIMEOUT_S", 1.0)
    make_context = context_pool.Spares._context
    asked: list[str] = []

    async def context(self: context_pool.Spares, settings: Settings, token: str) -> Any:
        asked.append(token)
        if len(asked) in {2, 3}:
            await asyncio.Event().wait()
        return await make_context(self, settings, token)

    monkeypatch.setattr(context_pool.Spares, "_context", context)
    first = pages(PAGE, pool=pool)
    first.open("/")
    for _ in range(3):
        again = pages(PAGE, pool=pool)
        assert again.open("/").tabs == ("t",)
        assert again.browser is first.browser
    browser = first.browser
    browser.run(browser.spares.settled(), timeout_s=20)
    assert len(browser.chromium.contexts) == browser.server.live_sessions == 4 + SPARES_EACH


def test_spare_that_is_not_ready_is_not_taken_for_its_age() -> None:
    loop = asyncio.new_event_loop()
    made: asyncio.Future[Any] = loop.create_future()
    made.set_result(None)
    pending: asyncio.Future[Any] = loop.create_future()
    late = context_pool._Spare(kind=1, path="/a", task=cast("Any", pending), passed_over=9)
    ready = context_pool._Spare(kind=1, path="/a", task=cast("Any", made))
    assert context_pool._best([late, ready], "/a") is ready
    assert late.passed_over == 10
    old = context_pool._Spare(kind=1, path="/b", task=cast("Any", made), passed_over=3)
    assert context_pool._best([late, ready, old], "/a") is old
    loop.close()


def test_context_of_a_try_that_was_given_up_is_closed(pages: OpenPages, pool: BrowserPool) -> None:
    """However early: while the driver makes it, nobody has it yet."""
    for timeout_s in (0.001, 0.003, 0.005, 0.01, 0.02, 0.04):
        session = pages(PAGE, pool=pool, open_timeout_s=timeout_s)
        with contextlib.suppress(BrowserHungError):
            session.open("/")
        session.close()
    (browser,) = pool.browsers
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        browser.run(browser.spares.settled(), timeout_s=20)
        if len(browser.chromium.contexts) == browser.spares.count:
            break
        time.sleep(0.05)
    assert len(browser.chromium.contexts) == browser.spares.count <= SPARES_EACH
    assert browser.server.live_sessions == browser.spares.count


def test_no_page_is_loaded_ahead_unless_the_site_allows_it(
    pages: OpenPages, pool: BrowserPool
) -> None:
    site = Ahead()
    for expected in (["/a"], ["/a", "/b"]):
        open_ahead(pages, site, expected[-1], pool=pool)
        assert site.asked == expected


def test_page_that_nobody_comes_back_to_is_not_kept(pages: OpenPages, pool: BrowserPool) -> None:
    """Of /a, /a one is taken for /b; the other is passed over three times and taken then."""
    site = Ahead()
    open_ahead(pages, site, "/a", pool=pool, loads_ahead=True)
    held: list[list[str]] = []
    for _ in range(6):
        open_ahead(pages, site, "/b", pool=pool, loads_ahead=True)
        (browser,) = pool.browsers
        held.append(sorted(spare.path for spare in browser.spares._spares))
    assert held == [["/a", "/b"]] * 3 + [["/b", "/b"]] * 3
