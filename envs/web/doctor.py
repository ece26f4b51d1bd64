"""What `agentgym doctor` says about the web family: packages and browser, and how to get them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from agentgym.envs.web.browser.chromium import (
    INSTALL_BROWSER,
    INSTALL_PACKAGES,
    find_chromium,
    missing_packages,
)

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about this machine."""

    topic: str
    """What it is about."""
    is_ok: bool
    """Whether it is as it should be."""
    text: str
    """The statement."""
    fix: str = ""
    """A command that mends it; empty if nothing is to be done."""


def doctor_report() -> tuple[Finding, ...]:
    """Return whether packages and browser are there, and whether the browser runs."""
    missing = missing_packages("playwright", "miniwob")
    packages = Finding(
        topic="packages",
        is_ok=not missing,
        text=f"not installed: {', '.join(missing)}" if missing else "playwright, miniwob",
        fix=INSTALL_PACKAGES if missing else "",
    )
    return packages, browser_finding(find_chromium())


def browser_finding(path: str | None) -> Finding:
    """Return whether the program at `path` is a browser that runs."""
    if path is None or shutil.which(path) is None:
        return Finding(
            topic="browser", is_ok=False, text="Chromium was not found", fix=INSTALL_BROWSER
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        text = f"{path} does not run: {error}"
        return Finding(topic="browser", is_ok=False, text=text, fix=INSTALL_BROWSER)
    return Finding(topic="browser", is_ok=True, text=f"{done.stdout.strip()} at {path}")
