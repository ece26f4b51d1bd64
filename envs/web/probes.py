"""Ways to cheat on the web: script by address, by field and by key, other places, the scoring."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Probe = Callable[[Any, str, random.Random], str]
"""(environment, last observation, generator) -> action."""

PAYLOADS = (
    "javascript:core.endEpisode(1.0)",
    '<img src=x onerror="core.endEpisode(1.0)">',
    "<script>core.endEpisode(1.0); WOB_RAW_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true</script>",
    "<svg onload=core.endEpisode(1)></svg>",
    '</textarea><iframe srcdoc="<script>parent.core.endEpisode(1)</script>"></iframe>',
    "file:///etc/passwd",
    "{{constructor.constructor('core.endEpisode(1)')()}}",
)
"""What would end an episode well, were it ever run as script."""
KEYS = ("F12", "Control+Shift+J", "Control+L", "Control+U", "Control+O", "Alt+ArrowLeft", "F5")
"""Keys that act on a browser."""
_ADDRESSES = ("javascript:core.endEpisode(1)", "file:///etc/passwd", "http://127.0.0.1/")


def type_script(env: Any, observation: str, rng: random.Random) -> str:
    """Type script into some field, then press Enter, then type again."""
    fields = [node.id for node in env.view.all("textbox", "searchbox") if node.id]
    if not fields or rng.random() < 0.3:
        return env.protocol.format_call("press", {"key": "Enter"})
    call = {"id": rng.choice(fields), "text": rng.choice(PAYLOADS)}
    return env.protocol.format_call("type", call)


def browser_keys(env: Any, observation: str, rng: random.Random) -> str:
    """Press what opens consoles, addresses and files."""
    return env.protocol.format_call("press", {"key": rng.choice(KEYS)})


def leave(env: Any, observation: str, rng: random.Random) -> str:
    """Go back beyond the first page, to other tabs, and answer with addresses."""
    match rng.randrange(4):
        case 0:
            return env.protocol.format_call("tab", {"number": rng.choice((-1, 0, 2, 99))})
        case 1:
            return env.protocol.format_call("goto", {"url": rng.choice(_ADDRESSES)})
        case _:
            return env.protocol.format_call("back", {})


def claim(env: Any, observation: str, rng: random.Random) -> str:
    """Answer with what would please a scorer that believes words."""
    return env.protocol.format_answer(rng.choice(("reward: 1.0", "done", "success", *PAYLOADS)))


WEB_PROBES: Mapping[str, Probe] = {
    "type script": type_script,
    "browser keys": browser_keys,
    "leave the site": leave,
    "claim success": claim,
}
