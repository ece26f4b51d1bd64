"""`PageEvents`: what pages do beside showing: questions, downloads, pages that never come.

A page's question is put to the agent, not answered for it: it is dismissed, which changes nothing,
unless the agent has said before that it accepts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from agentgym.envs.web.browser.browser import driver_error

_MOST_TOLD = 5
"""Notices of one action; further ones are counted."""
_MOST_CHARS = 300
_HOW_TO_ACCEPT = "to accept, use handle_dialog first and then do this again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How the next question of a page is answered."""

    accepts: bool
    """Whether it is accepted."""
    text: str
    """What is entered if a text is asked for."""


class PageEvents:
    """What the pages of one context do. Used in the browser's loop only."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        """For the next question; None dismisses it."""
        self._told: list[str] = []
        self._more = 0
        self._leaving: set[Any] = set()
        self._stays = asyncio.Event()

    def watch(self, context: Any) -> None:
        """Listen to a context; of each of its pages, `watch_page` is called too."""
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_finished)
        context.on("requestfailed", self._on_failed)

    def watch_page(self, page: Any) -> None:
        """Listen to one page of the context."""
        page.on("download", self._on_download)

    def begin(self) -> None:
        """Forget what the action before brought about."""
        self._told.clear()
        self._more = 0
        self._stays.clear()

    @property
    def notices(self) -> tuple[str, ...]:
        """What is to be told, a line each."""
        more = (f"[{self._more} further notices are left out]",) if self._more else ()
        return (*self._told, *more)

    @property
    def stays(self) -> bool:
        """Whether the page is still there that was to be left."""
        return self._stays.is_set()

    async def unless_stays(self, coming: Coroutine[Any, Any, Any]) -> None:
        """Wait for a page that is coming, until it is known that it never comes."""
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Task[Any]] = [
            loop.create_task(coming),
            loop.create_task(self._stays.wait()),
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def tell(self, text: str) -> None:
        """Have the agent told something with the next view."""
        if len(self._told) < _MOST_TOLD:
            self._told.append(text)
        else:
            self._more += 1

    async def _on_dialog(self, dialog: Any) -> None:
        if dialog.type == "alert":  # there is nothing to decide
            self.tell(f"Dialog: {_quoted(dialog.message)}")
            await dialog.accept()
            return
        answer, self.answer = self.answer, None
        asked = f"{dialog.type} {_quoted(dialog.message)}".rstrip()
        if dialog.type == "beforeunload":
            asked = "the page asks whether to leave it and lose what is not saved"
        if answer is not None and answer.accepts:
            self.tell(f"Dialog: {asked}: accepted")
            await dialog.accept(*((answer.text,) if dialog.type == "prompt" else ()))
            return
        hint = "" if answer is not None else f"; {_HOW_TO_ACCEPT}"
        self.tell(f"Dialog: {asked}: dismissed{hint}")
        await dialog.dismiss()
        if dialog.type == "beforeunload":
            self._stays.set()

    def _on_download(self, download: Any) -> None:
        self.tell(f"Download: {_quoted(download.suggested_filename)} refused: no files are taken")
        self._stays.set()

    def _on_request(self, request: Any) -> None:
        if _is_of_page(request):
            self._leaving.add(request)
            self._stays.clear()

    def _on_finished(self, request: Any) -> None:
        self._leaving.discard(request)

    def _on_failed(self, request: Any) -> None:
        if request not in self._leaving:
            return
        self._leaving.discard(request)
        # Aborted: no content, a download, or another page that is asked for instead of it.
        if "net::ERR_ABORTED" in (request.failure or "") and not self._leaving:
            self._stays.set()


def _is_of_page(request: Any) -> bool:
    """Return whether a request is for a document of a tab, not for one of a frame."""
    if not request.is_navigation_request():
        return False
    with contextlib.suppress(driver_error()):  # a tab that is only being made has no frame yet
        return request.frame.parent_frame is None
    return True


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= _MOST_CHARS else f'"{line[:_MOST_CHARS]} [...]"'
