"""Pages of the tests' own, in a browser; everything is skipped where that cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra web")

from agentgym.envs.web.browser.browser import POOL, BrowserPool
from agentgym.envs.web.browser.chromium import find_chromium
from agentgym.envs.web.browser.server import Request, Response
from agentgym.envs.web.browser.session import WebSession
from agentgym.envs.web.browser.settings import Settings

OpenPages = Callable[..., WebSession]


@pytest.fixture(scope="session")
def chromium() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip("needs Chromium")
    return found


@pytest.fixture(scope="session", autouse=True)
def shared_browser() -> Iterator[None]:
    """Keep the browsers of this process from test to test."""
    POOL.hold()
    yield
    POOL.release()


@pytest.fixture
def pool(chromium: str) -> Iterator[BrowserPool]:
    """Browsers of one test, kept between its sessions and gone after it."""
    pool = BrowserPool()
    pool.hold()
    yield pool
    pool.close()


@pytest.fixture
def pages(chromium: str) -> Iterator[OpenPages]:
    """Return a function that opens pages, given as path -> body, in the shared browser."""
    opened: list[WebSession] = []

    def open_pages(
        bodies: Mapping[str, str] | str, *, pool: BrowserPool | None = None, **settings: Any
    ) -> WebSession:
        texts = {"/": bodies} if isinstance(bodies, str) else bodies

        def respond(request: Request) -> Response:
            if request.path not in texts:
                return Response(status=404, body=b"<title>none</title>no such page")
            return Response(body=f"<!DOCTYPE html>{texts[request.path]}".encode())

        given = {"site": respond, **settings}
        session = WebSession(
            Settings(host="pages.test", **given), executable=chromium, pool=pool or POOL
        )
        opened.append(session)
        return session

    yield open_pages
    for session in opened:
        session.close()
