"""Tools: a function with a schema made from its types and docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool on offer."""

    name: str
    """As the agent writes it."""
    description: str
    """First lines of the docstring."""
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    function: Callable[..., Any]
    """What runs; sync or async."""
    is_async: bool = False
    """True if `function` returns an awaitable."""
