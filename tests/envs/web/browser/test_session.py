"""What an agent sees of a page and what its actions do, on pages written for the tests."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra web")

from agentgym.envs.web.browser import session as sessions
from agentgym.envs.web.browser.context_pool import load as load_page
from agentgym.envs.web.browser.server import Request, Response
from agentgym.envs.web.browser.session import OPEN_TRIES, WebSession
from agentgym.envs.web.browser.view import View
from agentgym.errors import InfrastructureError

pytestmark = pytest.mark.service
OpenPages = Callable[..., WebSession]

FORM = """<title>Form</title><h1>Order</h1>
<label>Name <input value="Ann"></label>
<label><input type="checkbox" checked> Gift</label>
<label>Size <select><option>S<option selected>M</select></label>
<input placeholder="Code" disabled>
<button>Send</button> <a href="/next">Next</a>
<p>Pay <b>now</b> or later.</p>"""


def lines(view: View) -> list[str]:
    return view.text().splitlines()


def test_view_lists_roles_names_values_and_states(pages: OpenPages) -> None:
    view = pages(FORM).open("/")
    assert lines(view) == [
        "URL: http://pages.test/",
        "Tab 1 of 1: Form",
        "Focus: none",
        '[1] heading "Order"',
        '[2] textbox "Name" value="Ann"',
        '[3] checkbox "Gift" checked',
        '[4] combobox "Size" value="M" options="S | M"',
        '[5] textbox "Code" value="" disabled',
        '[6] button "Send"',
        '[7] link "Next"',
        '[8] text "Pay"',
        ' [9] text "now"',
        ' "or later."',
    ]


def test_numbers_stay_with_their_elements(pages: OpenPages) -> None:
    """A new first element gets the next number; the others keep theirs."""
    body = """<button onclick="document.body.prepend(
      Object.assign(document.createElement('button'), {textContent: 'new'}))">old</button>"""
    session = pages(body)
    assert lines(session.open("/"))[3:] == ['[1] button "old"']
    view = session.act(lambda page: page.click(1))
    assert lines(view)[3:] == ['[2] button "new"', '[1] button "old"']


def test_what_is_typed_chosen_and_ticked_is_seen(pages: OpenPages) -> None:
    session = pages(FORM)
    session.open("/")
    session.act(lambda page: page.type(2, "Bob"))
    session.act(lambda page: page.click(3))
    view = session.act(lambda page: page.select(4, "s"))
    assert [line for line in lines(view) if line.startswith(("[2]", "[3]", "[4]"))] == [
        '[2] textbox "Name" value="Bob"',
        '[3] checkbox "Gift"',
        '[4] combobox "Size" value="S" options="S | M"',
    ]
    assert view.focus == 4
    assert "Focus: [4] combobox" in lines(view)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda page: page.type(5, "x"), "element 5 is disabled"),
        (lambda page: page.click(5), "element 5 is disabled"),
        (lambda page: page.click(99), "there is no element 99 on this page"),
        (lambda page: page.click(0), "there is no element 0 on this page"),
        (lambda page: page.type(6, "x"), "element 6 takes no text: it is element 6 (button)"),
        (lambda page: page.select(4, "XL"), "element 4 has no such option 'XL'; it has: S, M"),
        (lambda page: page.select(6, "S"), "element 6 has no options: it is element 6 (button)"),
        (lambda page: page.press("F12"), "unknown key 'F12'"),
        (lambda page: page.press("Control+V"), "unknown key 'Control+V'"),
        (lambda page: page.tab(2), "there is no tab 2: there are 1"),
        (lambda page: page.back(), "there is no page to go back to"),
        (lambda page: page.scroll("down", None), "there is nothing further down"),
    ],
)
def test_action_without_effect_says_why_k8(pages: OpenPages, act: Any, error: str) -> None:
    session = pages(FORM)
    session.open("/")
    view = session.act(act)
    assert view.error.startswith(error)
    assert f"Error: {view.error}" in lines(view)
    # The next action that has an effect takes the error away.
    assert session.act(lambda page: page.click(3)).error == ""


def test_covered_element_is_not_clicked_through(pages: OpenPages) -> None:
    body = """<button style="position:absolute;left:50px;top:50px;width:90px;height:30px"
      onclick="document.title='hit'">under</button>
      <div role="dialog" aria-label="Ad" style="position:absolute;left:0;top:0;width:400px;
      height:300px;background:white">ad</div>"""
    session = pages(body)
    view = session.open("/")
    button, dialog = view.first("button"), view.first("dialog")
    assert button is not None
    assert dialog is not None
    view = session.act(lambda page: page.click(button.id or 0))
    assert view.error == f"element {button.id} is covered by element {dialog.id} (dialog)"
    assert view.tabs != ("hit",)


def test_link_to_a_new_tab_is_followed_k6(pages: OpenPages) -> None:
    bodies = {
        "/": '<title>One</title><a target="_blank" href="/two">open</a>',
        "/two": "<title>Two</title><button onclick=\"document.title='Clicked'\">go</button>",
    }
    session = pages(bodies)
    session.open("/")
    view = session.act(lambda page: page.click(1))
    assert (view.tabs, view.tab, view.url) == (("One", "Two"), 1, "http://pages.test/two")
    assert lines(view)[1:4] == ["Tab 2 of 2:", "  1: One", "  2: Two (in front)"]
    # The next click applies to the tab in front.
    view = session.act(lambda page: page.click(1))
    assert view.tabs == ("One", "Clicked")
    view = session.act(lambda page: page.tab(1))
    assert (view.tab, view.url) == (0, "http://pages.test/")


def test_removed_frame_does_not_stall_the_view_k9(pages: OpenPages) -> None:
    """The frame that has the focus is removed by the click in it."""
    bodies = {
        "/": "<title>t</title><iframe src='/inner'></iframe><p>rest</p>",
        "/inner": "<button onclick='frameElement.remove()'>bye</button>",
    }
    session = pages(bodies, step_timeout_s=5.0)
    view = session.open("/")
    button = view.first("button", name="bye")
    assert button is not None
    view = session.act(lambda page: page.click(button.id or 0))
    assert [node.line() for node in view.nodes] == ['[3] text "rest"']
    assert view.focus is None


def test_scrolling_moves_the_element(pages: OpenPages) -> None:
    body = """<div id=box style="height:100px;overflow:auto"
      onscroll="document.title = this.scrollTop"><p style="height:300px">long</p></div>"""
    session = pages(body)
    view = session.open("/")
    text = view.first("text")
    assert text is not None
    # One step is 0.8 of the height: 80 pixels.
    view = session.act(lambda page: page.scroll("down", text.id))
    assert session.evaluate("() => document.getElementById('box').scrollTop") == 80
    session.act(lambda page: page.scroll("top", text.id))
    assert session.evaluate("() => document.getElementById('box').scrollTop") == 0


def test_form_and_slow_page_are_waited_for(pages: OpenPages) -> None:
    """The answer comes after 0.3 s; the view is of the new page, not of the old one."""

    async def respond(request: Request) -> Response:
        if request.path == "/found":
            await asyncio.sleep(0.3)
            return Response(body=f"<title>{request.query['q']}</title>".encode())
        return Response(body=b"<form action='/found'><input name=q><button>go</button></form>")

    session = pages("", site=respond)
    session.open("/")
    session.act(lambda page: page.type(1, "lamp"))
    view = session.act(lambda page: page.press("Enter"))
    assert (view.tabs, view.url) == (("lamp",), "http://pages.test/found?q=lamp")
    view = session.act(lambda page: page.back())
    assert view.url == "http://pages.test/"


@pytest.mark.parametrize(
    "way",
    ["class=star", "style='content: url(/star.svg)' class=star", "title=x><img src=/star.svg"],
)
def test_picture_of_a_new_element_is_there_however_slow_it_is(pages: OpenPages, way: str) -> None:
    """A picture has no size before it has come, and what has no size is not seen."""
    star = b"<svg xmlns='http://www.w3.org/2000/svg' width='12' height='12'></svg>"

    async def respond(request: Request) -> Response:
        if request.path == "/star.svg":
            await asyncio.sleep(0.3)
            return Response(body=star, content_type="image/svg+xml")
        new = f"<span onclick='1' {way}></span>"
        script = f"document.body.insertAdjacentHTML('beforeend', `{new}`)"
        style = "<style>.star { content: url('/star.svg') }</style>"
        return Response(body=f'{style}<button onclick="{script}">go</button>'.encode())

    session = pages("", site=respond)
    session.open("/")
    view = session.act(lambda page: page.click(1))
    assert any("clickable" in line or "image" in line for line in lines(view)), view.text()


@pytest.mark.parametrize(
    "address",
    ["http://example.org/", "http://127.0.0.1:9/", "https://pages.test/", "http://other.test/"],
)
def test_other_places_cannot_be_reached(pages: OpenPages, address: str) -> None:
    session = pages(f"<title>home</title><a href='{address}'>away</a>")
    session.open("/")
    view = session.act(lambda page: page.click(1))
    assert view.error == "that page cannot be reached"
    assert (view.url, view.tabs) == ("http://pages.test/", ("home",))


@pytest.mark.parametrize("address", ["file:///etc/passwd", "data:text/html,<title>x</title>"])
def test_files_and_data_are_not_opened(pages: OpenPages, address: str) -> None:
    """The browser itself refuses both for pages of the net."""
    session = pages(f"<title>home</title><a href='{address}'>away</a>")
    session.open("/")
    view = session.act(lambda page: page.click(1))
    assert (view.url, view.tabs) == ("http://pages.test/", ("home",))


def test_view_of_a_page_changes_nothing_on_it_k3(pages: OpenPages) -> None:
    session = pages(FORM)
    session.open("/")
    session.act(lambda page: page.type(2, "half"))
    html = "() => document.documentElement.outerHTML + document.querySelector('input').value"
    before = session.evaluate(html)
    view = session.act(lambda page: page.press("Escape"))
    assert session.evaluate(html) == before
    assert view.url == "http://pages.test/"


@pytest.mark.parametrize("key", ["é", "ß", "日", "😀", "a", "~"])
def test_character_is_pressed_whatever_the_keyboard(pages: OpenPages, key: str) -> None:
    session = pages("<input id='box' autofocus>")
    session.open("/")
    session.evaluate("() => document.getElementById('box').focus()")
    view = session.act(lambda page: page.press(key))
    assert (view.error, session.evaluate("() => document.getElementById('box').value")) == ("", key)


def test_back_to_the_answer_of_a_form_is_told_and_goes_on(pages: OpenPages) -> None:
    """The browser would have to send the form again, which it refuses."""

    def respond(request: Request) -> Response:
        body = "<form method='post' action='/sent'><button>Send</button></form>"
        body += f"<p>{request.method} {request.path}</p><a href='/next'>Next</a>"
        return Response(body=body.encode(), headers={"Cache-Control": "no-store"})

    session = pages("", site=respond)
    session.open("/")
    view = session.act(lambda page: page.click(1))
    assert "POST /sent" in view.text()
    session.act(lambda page: page.click(3))
    view = session.act(lambda page: page.back())
    assert view.error == "that page cannot be reached"
    assert view.url == "http://pages.test/"
    assert "GET /" in view.text()
    assert session.act(lambda page: page.click(1)).error == ""


def test_clock_stands_still_between_actions_k11(pages: OpenPages) -> None:
    """Each action takes half a second of the page's clock, whatever the wall clock says."""
    session = pages("<title>t</title><button>b</button>", clock_step_ms=500)
    session.open("/")
    first = session.evaluate("() => Date.now()")
    threading.Event().wait(0.7)
    assert session.evaluate("() => Date.now()") == first
    session.act(lambda page: page.click(1))
    assert session.evaluate("() => Date.now()") == first + 500


def test_page_draws_the_same_chance_for_a_seed(pages: OpenPages) -> None:
    body = "<script>document.title = Math.random()</script>"
    titles = [pages(body).open("/").tabs for _ in range(2)]
    assert titles[0] == titles[1]
    assert re.fullmatch(r"0\.\d+", titles[0][0])


def test_each_episode_has_a_fresh_context(pages: OpenPages) -> None:
    body = "<script>document.title = document.cookie + '.'; document.cookie = 'a=1'</script>"
    assert [pages(body).open("/").tabs for _ in range(2)] == [(".",), (".",)]


def test_session_works_in_a_running_loop_and_from_threads_k5(pages: OpenPages) -> None:
    """In plain code, inside a running loop, and opened in one thread and used in another."""

    def use(session: WebSession) -> str:
        session.open("/")
        return session.act(lambda page: page.click(3)).error

    async def in_loop() -> str:
        return use(pages(FORM))

    found = [use(pages(FORM)), asyncio.run(in_loop())]
    sessions = [pages(FORM), pages(FORM)]
    threads = [threading.Thread(target=lambda s=s: found.append(use(s))) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.append(sessions[0].act(lambda page: page.click(3)).error)
    assert found == [""] * 5


def test_first_page_is_tried_again_k7(pages: OpenPages) -> None:
    asked: list[str] = []

    async def respond(request: Request) -> Response:
        asked.append(request.path)
        if len(asked) == 1:
            await asyncio.sleep(30)
        return Response(body=b"<title>here</title>")

    session = pages("", site=respond, open_timeout_s=1.0)
    assert session.open("/").tabs == ("here",)
    assert asked == ["/", "/"]


def test_first_page_that_never_comes_is_an_infrastructure_failure_k7(pages: OpenPages) -> None:
    asked: list[str] = []

    async def respond(request: Request) -> Response:
        asked.append(request.path)
        await asyncio.sleep(30)
        return Response()

    session = pages("", site=respond, open_timeout_s=0.4)
    with pytest.raises(InfrastructureError):
        session.open("/")
    assert len(asked) == OPEN_TRIES == 3


def test_first_page_that_crashes_is_tried_again_k7(
    pages: OpenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def load(page: Any, url: str, **given: Any) -> None:
        tries.append(url)
        if len(tries) == 1:
            await page.goto("chrome://crash", timeout=3000)
        await load_page(page, url, **given)

    monkeypatch.setattr(sessions, "load", load)
    session = pages(FORM)
    assert session.open("/").tabs == ("Form",)
    assert tries == ["http://pages.test/"] * 2
    assert session.act(lambda page: page.click(3)).error == ""


def test_no_time_left_starts_nothing_k4(pages: OpenPages) -> None:
    session = pages(FORM, step_timeout_s=0.0)
    session.open("/")
    started: list[str] = []

    async def act(page: WebSession) -> str:
        started.append("yes")
        return ""

    with pytest.raises(InfrastructureError, match="no time is left"):
        session.act(act)
    assert started == []


def test_requests_without_the_token_are_refused(pages: OpenPages) -> None:
    import urllib.error
    import urllib.request

    session = pages(FORM)
    session.open("/")
    address = f"http://127.0.0.1:{session.browser.server.port}/"
    request = urllib.request.Request(address, headers={"Host": "pages.test"})
    with pytest.raises(urllib.error.HTTPError, match="403") as caught:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)
    caught.value.close()
