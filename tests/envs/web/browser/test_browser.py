"""Failures of browser, driver and page: typed, bounded in time, and the next episode works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs the extra web")

from agentgym.envs.web.browser import browser as browsers
from agentgym.envs.web.browser.browser import (
    Browser,
    BrowserError,
    BrowserGoneError,
    BrowserHungError,
    BrowserPool,
    PageCrashedError,
)
from agentgym.envs.web.browser.processes import children_of, command_of, is_alive, tree_of
from agentgym.envs.web.browser.session import CLOSE_TIMEOUT_S, WebSession
from agentgym.errors import InfrastructureError

pytestmark = pytest.mark.service
OpenPages = Callable[..., WebSession]

PAGE = "<title>t</title><button onclick='while (true) {}'>hang</button><button>fine</button>"


def processes(browser: Browser, kind: str = "") -> list[int]:
    """Return the living processes of a browser, or those of one kind."""
    tree = [pid for root in browser.process_ids for pid in tree_of(root)]
    return [pid for pid in tree if is_alive(pid) and kind in command_of(pid)]


def chromium_of(browser: Browser) -> int:
    """Return the browser's main process: without a type, below the script that may start it."""
    started = processes(browser, "--remote-debugging")
    return [pid for pid in started if "--type=" not in command_of(pid)][-1]


def click_fine(session: WebSession) -> str:
    return session.act(lambda page: page.click(2)).error


def test_hung_page_is_bounded_and_others_go_on_k10(pages: OpenPages, pool: BrowserPool) -> None:
    other, hung = pages(PAGE, pool=pool), pages(PAGE, pool=pool, step_timeout_s=1.5)
    other.open("/")
    hung.open("/")
    start = time.monotonic()
    with pytest.raises(BrowserHungError, match=r"did not answer in 1\.5 s"):
        hung.act(lambda page: page.click(1))
    hung.close()
    # 1.5 s for the action and at most 3 s to close; the machine may be busy.
    assert time.monotonic() - start < 3 * (1.5 + CLOSE_TIMEOUT_S)
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert click_fine(again) == ""
    assert issubclass(BrowserHungError, InfrastructureError)
    if other.browser.is_usable:
        assert click_fine(other) == ""


def test_stopped_driver_is_killed_with_its_browser_k10(pages: OpenPages, pool: BrowserPool) -> None:
    session = pages(PAGE, pool=pool, step_timeout_s=1.0)
    session.open("/")
    browser = session.browser
    tree = processes(browser)
    assert len(tree) > 2  # driver, browser, pages
    os.kill(browser.process_ids[0], signal.SIGSTOP)
    with pytest.raises(BrowserHungError):
        click_fine(session)
    start = time.monotonic()
    session.close()
    assert time.monotonic() - start < 3 * CLOSE_TIMEOUT_S
    assert [pid for pid in tree if is_alive(pid)] == []
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert again.browser is not browser
    assert click_fine(again) == ""


def test_stopped_page_is_bounded(pages: OpenPages, pool: BrowserPool) -> None:
    session = pages(PAGE, pool=pool, step_timeout_s=1.0)
    session.open("/")
    stopped = processes(session.browser, "--type=renderer")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BrowserHungError):
        click_fine(session)
    session.close()
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert click_fine(again) == ""
    # A stopped page outlives the browser that started it, unless its group is killed.
    pool.close()
    assert [pid for pid in stopped if is_alive(pid)] == []


def test_crashed_page_is_an_infrastructure_failure(pages: OpenPages, pool: BrowserPool) -> None:
    session = pages(PAGE, pool=pool, step_timeout_s=10.0)
    session.open("/")
    for pid in processes(session.browser, "--type=renderer"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(PageCrashedError):
        click_fine(session)
    session.close()
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert again.browser is session.browser
    assert click_fine(again) == ""


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_killed_browser_is_an_infrastructure_failure(
    pages: OpenPages, pool: BrowserPool, victim: str
) -> None:
    session = pages(PAGE, pool=pool, step_timeout_s=10.0)
    session.open("/")
    browser = session.browser
    pid = chromium_of(browser) if victim == "browser" else browser.process_ids[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrowserGoneError):
        click_fine(session)
    session.close()
    again = pages(PAGE, pool=pool)
    again.open("/")
    assert again.browser is not browser
    assert click_fine(again) == ""


def test_closed_session_says_so(pages: OpenPages) -> None:
    session = pages(PAGE)
    session.open("/")
    session.close()
    session.close()
    with pytest.raises(BrowserGoneError):
        click_fine(session)


def test_sessions_share_a_browser_and_leave_nothing(pages: OpenPages, pool: BrowserPool) -> None:
    sessions = [pages(PAGE, pool=pool) for _ in range(3)]
    for session in sessions:
        session.open("/")
    (browser,) = pool.browsers
    # Two more were made ahead, for the next episodes.
    browser.run(browser.spares.settled(), timeout_s=20)
    assert (browser.seats, browser.server.live_sessions, browser.spares.count) == (3, 5, 2)
    assert len(browser.chromium.contexts) == 5
    for session in sessions:
        session.close()
    assert (browser.seats, browser.server.live_sessions, browser.spares.count) == (0, 2, 2)
    assert len(browser.chromium.contexts) == 2
    tree = processes(browser)
    pool.close()
    assert [pid for pid in tree if is_alive(pid)] == []
    assert pool.browsers == ()


def test_full_browser_gets_a_second_one(
    pages: OpenPages, pool: BrowserPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "SEATS_EACH", 2)
    sessions = [pages(PAGE, pool=pool) for _ in range(3)]
    assert sorted(browser.seats for browser in pool.browsers) == [1, 2]
    assert len(sessions) == 3


def test_f38_browser_ends_with_the_last_session_and_the_last_hold(
    pages: OpenPages, pool: BrowserPool
) -> None:
    sessions = [pages(PAGE, pool=pool) for _ in range(2)]
    for session in sessions:
        session.open("/")
    browser = sessions[0].browser
    tree = processes(browser)
    assert len(tree) > 2  # driver, browser, pages
    for session in sessions:
        session.close()
    assert pool.browsers == (browser,)  # somebody holds it
    session = pages(PAGE, pool=pool)
    pool.release()
    assert pool.browsers == (browser,)  # and now it has a session
    session.close()
    assert (pool.browsers, [pid for pid in tree if is_alive(pid)]) == ((), [])


def test_f38_browser_ends_with_the_last_close_of_an_environment() -> None:
    """In a process of its own: two environments, each with two episodes, closed one by one."""
    script = """
from agentgym.env import registry
from agentgym.envs.web.browser.browser import POOL
from agentgym.envs.web.browser.processes import is_alive, tree_of
envs = [registry.make("web/shop-v0") for _ in range(2)]
for seed in range(2):
    for env in envs:
        env.reset(seed=seed)
(browser,) = POOL.browsers
tree = [pid for root in browser.process_ids for pid in tree_of(root)]
assert len(tree) > 2, tree
envs[0].close()
envs[0].close()
assert POOL.browsers == (browser,)
envs[1].close()
assert POOL.browsers == ()
assert [pid for pid in tree if is_alive(pid)] == []
envs[1].reset(seed=2)
assert len(POOL.browsers) == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_browser_that_is_no_browser_does_not_start(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(BrowserError, match="did not start"):
        Browser(executable=str(program))


def test_browser_that_never_answers_is_given_up(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    before = set(children_of(os.getpid()))
    with pytest.raises(BrowserHungError, match="did not start in 2 s"):
        Browser(executable=str(program), start_timeout_s=2.0)
    assert set(children_of(os.getpid())) <= before


def test_process_that_ends_leaves_no_browser_j10() -> None:
    """One ends in an exception, with its session open."""
    script = """
import os
from agentgym.env import registry
from agentgym.envs.web.browser.browser import POOL
from agentgym.envs.web.browser.processes import tree_of
env = registry.make("web/shop-v0")
env.reset(seed=0)
print(*[pid for root in POOL.browsers[0].process_ids for pid in tree_of(root)], flush=True)
raise ValueError("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "ValueError: the end" in done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) > 2
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_forked_child_has_browsers_of_its_own() -> None:
    """A child that plays does not touch the browser of its parent, whose episode goes on."""
    script = """
import os
from agentgym.env import registry
from agentgym.envs.web.browser import browser
env = registry.make("web/shop-v0")
env.reset(seed=0)
child = os.fork()
if not child:
    assert browser.POOL.browsers == ()
    other = registry.make("web/shop-v0")
    other.reset(seed=1)
    print(len(browser.POOL.browsers), "in the child", flush=True)
    other.close()
    env.close()
    browser.close_browsers()
    os._exit(0)
print("status", os.waitpid(child, 0)[1])
print(env.step("<press>Tab</press>")[4].get("error_kind"), len(browser.POOL.browsers), flush=True)
env.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split("\n")[:3] == ["1 in the child", "status 0", "None 1"], done.stderr
    assert done.returncode == 0
