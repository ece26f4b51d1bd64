"""Which Chromium is used, and what to say where a package or the browser is missing.

In order: `find_chromium`, `require_packages`, `require_chromium`, the error.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from agentgym.errors import AgentGymError, MissingExtraError

PATH_VARIABLE = "AGENTGYM_CHROMIUM"
"""Environment variable with the path of the browser to use."""
PROGRAMS = (
    # The shell first: it has no windows to draw and opens pages two to three times as fast.
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
"""Names of the browser where a system's packages bring it, best first."""
INSTALL_PACKAGES = "pip install 'agentgym-rl-kit[web]'"
INSTALL_BROWSER = (
    "playwright install --with-deps chromium-headless-shell "
    "(or, on Debian, apt-get install chromium-headless-shell)"
)
_DOWNLOADS = Path.home() / ".cache" / "ms-playwright"
_DOWNLOADED = ("chrome-headless-shell", "headless_shell", "chrome")
"""Names of the program in Playwright's own folder, best first."""


class MissingBrowserError(MissingExtraError):
    """A package of the extra `web`, or Chromium itself, is not there."""

    def __init__(self, text: str) -> None:
        AgentGymError.__init__(self, text)


def find_chromium() -> str | None:
    """Return the path of the browser: the variable's, Playwright's own, the system's; or None."""
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return shutil.which(named)
    downloaded = _downloaded()
    if downloaded is not None:
        return downloaded
    return next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)


def missing_packages(*modules: str) -> tuple[str, ...]:
    """Return those of the modules that are not installed."""
    return tuple(name for name in modules if importlib.util.find_spec(name) is None)


def require_packages(env_id: str, *modules: str) -> None:
    """Do nothing if the modules are installed.

    Raises:
        MissingBrowserError: If one is not; the message has the lines that install everything.
    """
    missing = missing_packages(*modules)
    if missing:
        raise MissingBrowserError(
            f"{env_id} needs {' and '.join(missing)}: {INSTALL_PACKAGES}, and then the browser: "
            f"{INSTALL_BROWSER}"
        )


def require_chromium(env_id: str) -> str:
    """Return the path of the browser.

    Raises:
        MissingBrowserError: If there is none; the message has the line that installs it.
    """
    found = find_chromium()
    if found is None:
        named = os.environ.get(PATH_VARIABLE)
        where = f"{PATH_VARIABLE} names no program ({named!r})" if named else "none was found"
        raise MissingBrowserError(f"{env_id} needs Chromium, {where}: {INSTALL_BROWSER}")
    return found


def _downloaded() -> str | None:
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or _DOWNLOADS)
    if not folder.is_dir():
        return None
    # One folder a revision, `chromium_headless_shell-1255/chrome-…/…`: the newest first.
    folders = sorted(folder.glob("chromium*-*"), key=_revision, reverse=True)
    for name in _DOWNLOADED:
        for revision in folders:
            for path in revision.glob(f"*/{name}"):
                if os.access(path, os.X_OK):
                    return str(path)
    return None


def _revision(folder: Path) -> int:
    tail = folder.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0
