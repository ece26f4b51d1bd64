"""A control call is done when the server says so, and not before: F15.

The class: unknown read as yes. Every call of `HttpControl` gets every answer that says nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from agentgym.errors import PolicyError
from agentgym.policies.vllm import HttpControl, Server
from agentgym.testing.fake_http import FaultyServer, Handler, Request

CALLS: dict[str, Callable[[HttpControl], Awaitable[Any]]] = {
    "pause": lambda control: control.pause(),
    "resume": lambda control: control.resume(),
    "reset_cache": lambda control: control.reset_cache(),
    "init_transfer": lambda control: control.init_transfer({}),
    "start_update": lambda control: control.start_update(),
    "update": lambda control: control.update({}),
    "finish_update": lambda control: control.finish_update(),
    "reload": lambda control: control.reload("/m"),
    "load_adapter": lambda control: control.load_adapter("a", "/a"),
    "unload_adapter": lambda control: control.unload_adapter("a"),
    "world_size": lambda control: control.world_size(),
}
# What vLLM 0.32 answers, from its sources.
YES: dict[str, object] = {
    "pause": {"status": "paused"},
    "resume": {"status": "resumed"},
    "reset_cache": {"success": True},
    "init_transfer": {"message": "Weight transfer initialized"},
    "start_update": {"message": "Weight update started"},
    "update": {"message": "Weights updated"},
    "finish_update": {"message": "Weight update finished"},
    "reload": {"results": [None, None]},
    "load_adapter": "Success: LoRA adapter 'a' added successfully.",
    "unload_adapter": "Success: LoRA adapter 'a' removed successfully.",
    "world_size": {"world_size": 2},
}
UNKNOWN: list[object] = [
    None,
    "",
    "OK",
    True,
    [],
    {},
    {"status": "queued"},
    {"status": ["paused"]},
    {"message": "queued"},
    {"success": 1},
    {"success": "true"},
    {"success": False},
    {"results": []},
    {"results": None},
    {"results": [None, "no such file"]},
    {"world_size": "2"},
    {"world_size": True},
    {"world_size": 0},
]


class Answering(FaultyServer):
    """Gives one answer to everything."""

    def __init__(self) -> None:
        super().__init__(0)
        self.answer: object = None

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        async def answer(_: Request) -> tuple[int, object]:
            return 200, self.answer

        class Every(dict[tuple[str, str], Handler]):
            def get(self, key: Any, default: Any = None) -> Any:
                return answer

        return Every()

    def reborn(self) -> None:
        pass


@pytest.mark.parametrize("name", CALLS)
async def test_f15_an_answer_that_does_not_say_yes_is_a_failure(name: str) -> None:
    async def never() -> Any:
        raise AssertionError

    async with Answering() as fake:
        server = Server(fake.url)
        control = HttpControl(server, probe=never, continued=never)
        fake.answer = YES[name]
        await CALLS[name](control)
        others = [answer for other, answer in YES.items() if other != name]
        adapters = {"load_adapter", "unload_adapter"}
        for answer in [*UNKNOWN, *others]:
            if name in adapters and isinstance(answer, str) and answer.startswith("Success"):
                continue  # the answer of the other call about adapters
            fake.answer = answer
            with pytest.raises(PolicyError, match=r"does not say that it is done|no number"):
                await CALLS[name](control)
        await server.aclose()
