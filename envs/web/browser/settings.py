"""`Settings`: how an environment opens its pages."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.envs.web.browser.server import Site

STEP_TIMEOUT_S = 20.0
"""One action with what follows from it; 0.03 s by custom."""
OPEN_TIMEOUT_S = 10.0
"""One try to open the first page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an environment opens its pages."""

    host: str
    """Name of its site, under `.test`."""
    site: Site
    """Answers the browser."""
    viewport: tuple[int, int] = (1000, 800)
    """Width and height, in CSS pixels."""
    clock_step_ms: int | None = None
    """What each action moves the page's clock on; None leaves the clock alone."""
    loads_ahead: bool = False
    """Whether a first page may be loaded before its episode is there. Then the site must not look
    at the session's state for it, and its scripts draw with seed 0 while it loads."""
    skip: str = ""
    """CSS selector of what is not shown."""
    shows_places: bool = False
    """Whether each element is shown with its place."""
    probe: str = "() => null"
    """JavaScript function whose value comes with each view."""
    step_timeout_s: float = STEP_TIMEOUT_S
    """For one action."""
    open_timeout_s: float = OPEN_TIMEOUT_S
    """For one try to open the first page."""
