"""`WebEnv`: the tools of a browser over one session an episode. Subclasses say what page it is.

Every observation is the page after the action: address, tabs, focus, error, and the elements with
the numbers to act on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentgym.env.contract import Reply
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.web.browser.browser import POOL
from agentgym.envs.web.browser.chromium import require_chromium, require_packages
from agentgym.envs.web.browser.session import WebSession
from agentgym.envs.web.browser.settings import Settings
from agentgym.envs.web.browser.view import View
from agentgym.envs.web.probes import WEB_PROBES, Probe
from agentgym.errors import EnvError
from agentgym.records import Attachment, ErrorKind, Task
from agentgym.records.limits import Limits
from agentgym.tool_formats.tools import tool

MOST_TYPED_CHARS = 2_000
"""Longer texts are refused: no task asks for one."""


class Direction(StrEnum):
    """Where to scroll."""

    UP = "up"
    DOWN = "down"
    TOP = "top"
    BOTTOM = "bottom"


class WebEnv(ToolEnv):
    """Act on a page in a browser.

    Args:
        screenshots: Folder for a picture of the page after each action, attached to the
            observation; None takes none.
        instructions: False leaves the system prompt out, for models that learn the protocol from
            demonstrations and pay for every token of context.
    """

    known_as = "web"
    """Id of the environment, for messages of its constructor."""
    packages: tuple[str, ...] = ("playwright",)
    """Modules that it needs."""
    reset_needs: str = "a browser"
    # The browser's own bounds are tighter, so that what hangs is named.
    limits = Limits(max_turns=20, step_timeout_s=60.0)

    def __init__(
        self,
        *,
        screenshots: str | None = None,
        instructions: bool = True,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode, tools=tools)
        require_packages(self.known_as, *self.packages)
        self._executable = require_chromium(self.known_as)
        self.tells_tools = instructions
        if not instructions:
            self.system_prompt = ""
        self._folder = Path(screenshots) if screenshots is not None else None
        self._session: WebSession | None = None
        self._view: View | None = None
        self._has_hold = False
        self.actions_taken = 0

    # -- what a subclass defines -----------------------------------------------------------

    def settings(self) -> Settings:
        """Return how pages are opened."""
        raise NotImplementedError

    def open_page(self, task: Task, seed: int) -> View:
        """Open the task's first page with `open_session` and return the view of it."""
        raise NotImplementedError

    def verdict(self) -> Reply | None:
        """Return how the episode ended, if it did; called after each action."""
        raise NotImplementedError

    # -- the episode -----------------------------------------------------------------------

    def start(self, task: Task, rng: random.Random) -> str:
        """Open a fresh context and show the task and its first page."""
        self._end_session()
        self.actions_taken = 0
        self._view = self.open_page(task, rng.getrandbits(31))
        return f"Task: {self.goal}\n\n{self._view.text()}"

    @property
    def goal(self) -> str:
        """What is asked, in words."""
        assert self.task is not None
        return self.task.prompt

    @tool
    def click(self, id: int) -> Reply:
        """Click an element.

        Args:
            id: Its number.
        """
        return self._act(lambda session: session.click(id))

    @tool
    def type(self, id: int, text: str) -> Reply:
        """Replace the text of a field.

        Args:
            id: Number of the field.
            text: The new text.
        """
        if len(text) > MOST_TYPED_CHARS:
            return self._act(_refused(f"a text may have {MOST_TYPED_CHARS} characters"))
        return self._act(lambda session: session.type(id, text))

    @tool
    def select(self, id: int, option: str) -> Reply:
        """Choose an option of a list.

        Args:
            id: Number of the list.
            option: The option as it is shown.
        """
        return self._act(lambda session: session.select(id, option))

    @tool
    def press(self, key: str) -> Reply:
        """Press a key where the focus is, such as Enter, Tab, ArrowDown or a.

        Args:
            key: Name of the key, or one character.
        """
        return self._act(lambda session: session.press(key))

    @tool
    def scroll(self, direction: Direction, id: int | None = None) -> Reply:
        """Scroll the page up, down, to the top or to the bottom, or one element of it.

        Args:
            direction: up, down, top or bottom.
            id: Number of the element; without it the page.
        """
        return self._act(lambda session: session.scroll(direction, id))

    @tool
    def back(self) -> Reply:
        """Go back to the page before this one."""
        return self._act(lambda session: session.back())

    @tool
    def tab(self, number: int) -> Reply:
        """Bring another tab to the front.

        Args:
            number: Its number, from 1.
        """
        return self._act(lambda session: session.tab(number))

    @tool
    def handle_dialog(self, accept: bool, text: str = "") -> Reply:
        """Say beforehand how the page's next question is answered; otherwise it is dismissed.

        Args:
            accept: True for OK, False for cancel.
            text: What to enter, if the page asks for a text.
        """
        if len(text) > MOST_TYPED_CHARS:
            return self._act(_refused(f"a text may have {MOST_TYPED_CHARS} characters"))
        return self._act(lambda session: session.handle_dialog(accepts=accept, text=text))

    def extra_probes(self) -> Mapping[str, Probe]:
        """Return ways to run script, to leave the site, and to reach the scoring."""
        return WEB_PROBES

    def screenshot(self) -> Path | None:
        """Write a picture of the page, for who plays; return where. None if no page is open."""
        if self._session is None:
            return None
        return _written(self._session.screenshot(), self._folder or _own_folder())

    @property
    def view(self) -> View:
        """The page as it was last seen."""
        if self._view is None:
            raise EnvError(f"{self.env_id}: no page is open; call reset first")
        return self._view

    @property
    def session(self) -> WebSession:
        """The open context."""
        if self._session is None:
            raise EnvError(f"{self.env_id}: the environment is closed")
        return self._session

    def open_session(self, *, state: Any, seed: int) -> WebSession:
        """Return a fresh session, which `close` and the next `reset` close."""
        self._end_session()
        if not self._has_hold:
            POOL.hold()
            self._has_hold = True
        self._session = WebSession(
            self.settings(), executable=self._executable, state=state, seed=seed
        )
        return self._session

    def close(self) -> None:
        """Close the context; with the last environment of the process the browser ends too."""
        self._end_session()
        if self._has_hold:
            self._has_hold = False
            POOL.release()
        super().close()

    def _end_session(self) -> None:
        session, self._session, self._view = self._session, None, None
        if session is not None:
            session.close()

    def _act(self, deed: Callable[[WebSession], Awaitable[str]]) -> Reply:
        self._view = self.session.act(deed)
        self.actions_taken += 1
        ended = self.verdict()
        if ended is not None:
            return ended
        kind = ErrorKind.MODEL if self._view.error else None
        return Reply(observation=self._view.text(), error_kind=kind, attachments=self._pictures())

    def _pictures(self) -> tuple[Attachment, ...]:
        if self._folder is None:
            return ()
        content = self.session.screenshot()
        path = _written(content, self._folder)
        digest = hashlib.sha256(content).hexdigest()
        return (Attachment(media_type="image/png", sha256=digest, path=str(path)),)


def _refused(error: str) -> Callable[[WebSession], Awaitable[str]]:
    async def refuse(session: WebSession) -> str:
        return error

    return refuse


def _own_folder() -> Path:
    import tempfile

    return Path(tempfile.gettempdir()) / "agentgym-screenshots"


def _written(content: bytes, folder: Path) -> Path:
    # Named by content: a picture that did not change is not stored twice.
    path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.png"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
