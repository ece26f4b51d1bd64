"""What pages do beside showing something, and which element a number means.

F35 holds the class *a question answered for the agent, irreversibly*; F36 whatever asks for a page
that never comes; F37 the class *numbers name nodes, not meanings*.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("playwright", reason="needs the extra web")

from agentgym.envs.web.browser.server import Request, Response
from agentgym.envs.web.browser.session import WebSession
from agentgym.envs.web.browser.view import View

pytestmark = pytest.mark.service
OpenPages = Callable[..., WebSession]


def click(session: WebSession, view: View, name: str) -> View:
    (node,) = view.all(name=name)
    return session.act(lambda page: page.click(node.id or 0))


def answer(session: WebSession, *, accepts: bool, text: str = "") -> View:
    return session.act(lambda page: page.handle_dialog(accepts=accepts, text=text))


# ---------------------------------------------------------------------------------- questions

ASKING = """<title>t</title>
<button onclick="document.title = confirm('Delete it?')">delete</button>
<button onclick="document.title = prompt('Your name?', 'none')">name</button>
<button onclick="document.title = alert('Saved')">save</button>
<button onclick="for (let i = 0; i < 9; i++) alert(i)">many</button>
<button onclick="document.title = [confirm('One?'), confirm('Two?')]">both</button>"""
HINT = "; to accept, use handle_dialog first and then do this again"


def test_f35_question_is_dismissed_and_told_with_its_kind(pages: OpenPages) -> None:
    session = pages(ASKING)
    view = session.open("/")
    view = click(session, view, "delete")
    assert view.notices == (f'Dialog: confirm "Delete it?": dismissed{HINT}',)
    assert (view.tabs, view.notices[0] in view.text().splitlines()) == (("false",), True)
    view = click(session, view, "name")
    assert view.notices == (f'Dialog: prompt "Your name?": dismissed{HINT}',)
    assert view.tabs == ("null",)
    view = click(session, view, "save")
    assert (view.notices, view.tabs) == (('Dialog: "Saved"',), ("undefined",))


def test_f35_question_is_accepted_once_if_the_agent_said_so(pages: OpenPages) -> None:
    session = pages(ASKING)
    view = session.open("/")
    answer(session, accepts=True)
    # What is no question does not use the answer up, nor does an action without one.
    click(session, view, "save")
    view = click(session, view, "delete")
    assert (view.notices, view.tabs) == (('Dialog: confirm "Delete it?": accepted',), ("true",))
    assert click(session, view, "delete").tabs == ("false",)
    answer(session, accepts=True, text="Ann")
    assert click(session, view, "name").tabs == ("Ann",)
    answer(session, accepts=False)
    view = click(session, view, "delete")
    assert (view.notices, view.tabs) == (('Dialog: confirm "Delete it?": dismissed',), ("false",))
    answer(session, accepts=True)
    assert click(session, view, "both").tabs == ("true,false",)


def test_f35_many_dialogs_are_counted(pages: OpenPages) -> None:
    session = pages(ASKING)
    view = click(session, session.open("/"), "many")
    assert view.notices[0] == 'Dialog: "0"'
    assert view.notices[-1] == "[4 further notices are left out]"
    assert len(view.notices) == 6


def test_f35_page_that_asks_to_stay_is_told_and_stays(pages: OpenPages) -> None:
    guard = "window.addEventListener('beforeunload', event => event.preventDefault())"
    bodies = {
        "/": "<title>start</title><a href='/form'>form</a>",
        "/form": f"<title>form</title><a href='/next'>next</a><button onclick=\"{guard}\">edit"
        "</button>",
        "/next": "<title>next</title>",
    }
    session = pages(bodies)
    view = click(session, session.open("/"), "form")
    view = click(session, view, "edit")
    asked = "Dialog: the page asks whether to leave it and lose what is not saved"
    view = click(session, view, "next")
    assert (view.notices, view.tabs) == ((f"{asked}: dismissed{HINT}",), ("form",))
    view = session.act(lambda page: page.back())
    assert (view.notices, view.tabs) == ((f"{asked}: dismissed{HINT}",), ("form",))
    assert view.error == "the page was not left"
    answer(session, accepts=True)
    view = click(session, view, "next")
    assert (view.notices, view.tabs) == ((f"{asked}: accepted",), ("next",))


# ---------------------------------------------------------------------- pages that never come

LEADING_NOWHERE = """<title>home</title><a href='/file.html' download>named</a>
<a href='/bin'>bytes</a> <a href='/attached'>attached</a> <a href='/nothing'>nothing</a>
<a href='/bin' target=_blank>tab</a> <a href='/next'>next</a>
<form action='/bin'><button>form</button></form>
<button onclick="location = '/nothing'">script</button>
<button onclick="location = '/nothing'; setTimeout(() => location = '/next')">twice</button>"""


def lead(request: Request) -> Response:
    match request.path:
        case "/file.html":
            return Response(body=b"1")
        case "/bin":
            return Response(body=b"1", content_type="application/octet-stream")
        case "/attached":
            return Response(
                body=b"1", headers={"Content-Disposition": "attachment; filename=a.txt"}
            )
        case "/nothing":
            return Response(status=204)
        case "/":
            return Response(body=LEADING_NOWHERE.encode())
        case _:
            return Response(body=b"<title>next</title>")


@pytest.mark.parametrize(
    ("link", "notices"),
    [
        ("named", ('Download: "file.html" refused: no files are taken',)),
        ("bytes", ('Download: "bin" refused: no files are taken',)),
        ("attached", ('Download: "a.txt" refused: no files are taken',)),
        ("tab", ('Download: "bin" refused: no files are taken',)),
        ("form", ('Download: "bin" refused: no files are taken',)),
        ("nothing", ()),
        ("script", ()),
    ],
)
def test_f36_page_that_never_comes_is_told_and_the_session_goes_on(
    pages: OpenPages, link: str, notices: tuple[str, ...]
) -> None:
    session = pages("", site=lead, step_timeout_s=15.0)
    view = click(session, session.open("/"), link)
    assert (view.notices, view.tabs, view.url) == (notices, ("home",), "http://pages.test/")
    assert click(session, view, "next").tabs == ("next",)


def test_f36_page_that_is_asked_for_in_place_of_another_is_waited_for(pages: OpenPages) -> None:
    session = pages("", site=lead)
    assert click(session, session.open("/"), "twice").tabs == ("next",)


# ------------------------------------------------------------------------------------ numbers


def test_f37_node_that_is_used_again_for_something_else_gets_a_new_number(pages: OpenPages) -> None:
    body = """<button onclick="a.textContent = 'Delete Bob'">shift</button>
      <button id=a onclick="document.title = 'clicked'">Delete Ann</button>"""
    session = pages(body)
    view = session.open("/")
    (stale,) = view.all("button", name="Delete Ann")
    view = click(session, view, "shift")
    (fresh,) = view.all("button", name="Delete Bob")
    assert fresh.id != stale.id
    view = session.act(lambda page: page.click(stale.id or 0))
    assert view.error == (
        f'element {stale.id} has changed: it was button "Delete Ann", it is button "Delete Bob" now'
    )
    assert view.tabs != ("clicked",)
    assert click(session, view, "Delete Bob").tabs == ("clicked",)


@pytest.mark.parametrize(
    ("element", "change"),
    [
        ("<button id=a>Buy</button>", "a.textContent = 'Sell'"),
        ("<a id=a href='#x'>Buy</a>", "a.textContent = 'Sell'"),
        ("<input id=a type=submit value=Buy>", "a.value = 'Sell'"),
        ("<div id=a role=button>Buy</div>", "a.setAttribute('role', 'link')"),
        ("<div id=a onclick='1'><b>Buy</b></div>", "a.firstChild.textContent = 'Sell'"),
        ("<label>Buy <input id=a></label>", "a.parentElement.firstChild.data = 'Sell'"),
        ("<label><input id=a type=checkbox> Buy</label>", "a.nextSibling.data = 'Sell'"),
        ("<input id=a aria-label=Buy>", "a.setAttribute('aria-label', 'Sell')"),
        ("<p id=a>Buy</p>", "a.textContent = 'Sell'"),
    ],
)
def test_f37_change_between_the_view_and_the_action_is_refused(
    pages: OpenPages, element: str, change: str
) -> None:
    """The page changes by itself, as by a timer: what is clicked is not what was shown."""
    session = pages(f"<title>t</title>{element}")
    view = session.open("/")
    number = next(node.id for node in view.nodes if node.id is not None)
    session.evaluate(
        f"() => {{ {change}; a.addEventListener('click', () => document.title = 'c') }}"
    )
    view = session.act(lambda page: page.click(number))
    assert view.error.startswith(f"element {number} has changed: it was ")
    assert view.tabs == ("t",)


def test_f37_number_stays_whatever_an_element_holds_and_in_whatever_state_it_is(
    pages: OpenPages,
) -> None:
    body = """<label>Name <input></label> <label><input type=checkbox> Gift</label>
      <textarea aria-label=Note>old</textarea> <select><option>S<option>M</select>
      <div contenteditable style="width:9em;height:2em"></div>"""
    session = pages(body)
    before = session.open("/")
    numbers = [node.id for node in before.all()]
    name, gift, note, size, free = numbers
    session.act(lambda page: page.type(name or 0, "Ann"))
    session.act(lambda page: page.click(gift or 0))
    session.act(lambda page: page.type(note or 0, "new"))
    session.act(lambda page: page.select(size or 0, "M"))
    view = session.act(lambda page: page.type(free or 0, "free"))
    assert [node.id for node in view.all()] == numbers
    assert [node.value for node in view.all()] == ["Ann", None, "new", "M", "free"]
