"""`web/shop-v0`: buy what was asked for in a small shop, in a real browser."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from agentgym.env.contract import Reply
from agentgym.envs.web.browser.settings import Settings
from agentgym.envs.web.browser.view import View
from agentgym.envs.web.env import WebEnv
from agentgym.envs.web.shop.catalogue import catalogue
from agentgym.envs.web.shop.expert import next_call
from agentgym.envs.web.shop.site import HOST, respond
from agentgym.envs.web.shop.state import Customer, Wish, score
from agentgym.envs.web.shop.tasks import ENV_ID, LEVELS, check_levels, draw_task
from agentgym.records import Task
from agentgym.records.limits import Limits


class ShopEnv(WebEnv):
    """Find a product, choose its options, and order it.

    The outcome is how well the order fulfils what was asked for, in [0, 1], read from the server's
    own record of the customer: kind of thing, material, feature, options, price and quantity. An
    order ends the episode; without one the outcome is 0, whatever lies in the basket.

    Args:
        levels: Levels to draw tasks from; see `agentgym.envs.web.shop.tasks`.
        screenshots: Folder for a picture of the page after each action; None takes none.
        instructions: False leaves the system prompt out.
    """

    known_as = ENV_ID
    system_prompt = (
        "Order what is asked for in the shop. Elements have numbers to act on. The first order "
        "that is placed counts.\n{tools}"
    )
    # Two products take some 24 actions; and as much again for detours.
    limits = Limits(max_turns=40, step_timeout_s=60.0)
    answers_are_final = False

    def __init__(
        self,
        *,
        levels: Sequence[int] = LEVELS,
        screenshots: str | None = None,
        instructions: bool = True,
        render_mode: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            screenshots=screenshots, instructions=instructions, render_mode=render_mode, tools=tools
        )
        self._levels = check_levels(levels)
        self._customer = Customer()
        self._wishes: tuple[Wish, ...] = ()

    def sample_task(self, rng: random.Random) -> Task:
        """Return a training task drawn with `rng`."""
        return draw_task(rng, levels=self._levels)

    def settings(self) -> Settings:
        """Return the shop's site; its pages have no clock."""
        return Settings(host=HOST, site=respond)

    def open_page(self, task: Task, seed: int) -> View:
        """Open the shop's first page for a new customer, who is signed in (K2)."""
        wishes = cast("Sequence[Mapping[str, Any]]", task.payload["wishes"])
        self._wishes = tuple(Wish.from_json(fields) for fields in wishes)
        # Generated before the page asks for it, which has less time.
        catalogue()
        self._customer = Customer()
        return self.open_session(state=self._customer, seed=seed).open("/")

    @property
    def customer(self) -> Customer:
        """The server's record of the customer."""
        return self._customer

    def verdict(self) -> Reply | None:
        """Return the score once an order is placed, from the server's record alone (K3)."""
        if self._customer.order is None:
            return None
        return self._ended("The order is placed.")

    def grade(self, answer: str) -> Reply:
        """End the episode."""
        return self._ended("The episode is over without an order.")

    def outcome(self) -> float:
        """Return the score of the order; 0 without one."""
        return score(self._wishes, self._customer.order)

    def expert(self) -> str:
        """Return the next action towards what is still missing in the basket."""
        parts = urlsplit(self.view.url)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        name, arguments = next_call(
            self._wishes, self._customer.basket, self.view, path=parts.path, query=query
        )
        return self.protocol.format_call(name, arguments)

    def _ended(self, text: str) -> Reply:
        return Reply(observation=text, outcome=self.outcome())
