"""Kinds of sandboxes by name, and the best kind that this machine has."""

from __future__ import annotations

import importlib

from agentgym.errors import InfrastructureError, RegistryError, nearest
from agentgym.sandbox import BACKENDS
from agentgym.sandbox.base import Sandbox, SandboxLimits, SandboxUnavailableError

AUTO = "auto"
"""In place of a name: the best kind present, never one that does not isolate."""


def sandbox_class(name: str) -> type[Sandbox]:
    """Return the class of a kind of sandbox.

    Raises:
        RegistryError: If there is no kind of that name.
        SandboxUnavailableError: If its module needs a package that is missing.
    """
    if name not in BACKENDS:
        raise RegistryError(
            f"unknown sandbox {name!r}{nearest(name, BACKENDS)}; there are {', '.join(BACKENDS)}"
        )
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


async def available_backends() -> dict[str, str | None]:
    """Return isolating kinds, best first, with what keeps each from working here, if anything.

    A box of each kind is started, so this is what works and not only what is installed.
    """
    found: dict[str, str | None] = {}
    for name in BACKENDS:
        cls = sandbox_class(name)
        if cls.isolates:
            found[name] = await _problem(cls)
    return found


async def _problem(cls: type[Sandbox]) -> str | None:
    try:
        box = cls()
        try:
            await box.start()
        finally:
            await box.aclose()
    except (SandboxUnavailableError, InfrastructureError) as error:
        return str(error)
    return None


async def best_available() -> str:
    """Return the name of the best kind of sandbox that works here; never `subprocess`.

    Raises:
        SandboxUnavailableError: If none works; says for each what to install.
    """
    found = await available_backends()
    for name, problem in found.items():
        if problem is None:
            return name
    reasons = "\n".join(f"  {name}: {problem}" for name, problem in found.items())
    raise SandboxUnavailableError(
        "no sandbox works on this machine, and nothing was run. Install one of them, or run "
        "`agentgym doctor`. To run code of an agent with your own rights all the same, ask for "
        f"the sandbox 'subprocess' by name.\n{reasons}"
    )


async def resolve(name: str) -> str:
    """Return `name`, or the best kind present for `auto`."""
    return await best_available() if name == AUTO else name


def make_sandbox(name: str, limits: SandboxLimits | None = None) -> Sandbox:
    """Return a box of a kind, not started yet.

    Raises:
        RegistryError: If there is no kind of that name.
    """
    return sandbox_class(name)(limits)
