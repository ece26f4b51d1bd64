"""Measures the web environments: speed beside other drivers of the same pages, memory, leaks.

    python tests/bench/web.py                      all of it, some ten minutes
    python tests/bench/web.py speed selenium       parts: speed, selenium, memory, kills, leaks

`speed` plays the actions of the scripted solutions twice in turn: through the environment, and by a
loop of Playwright's own calls that does the same and no more. `selenium` plays the environment
that the package miniwob brings, with its own observation, and ours on the same pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentgym.env import registry
from agentgym.envs.web.browser.browser import POOL, close_browsers
from agentgym.envs.web.browser.chromium import require_chromium
from agentgym.envs.web.browser.processes import command_of, tree_of
from agentgym.envs.web.browser.view import MOST_NODES, View, read_nodes
from agentgym.envs.web.miniwob import env as miniwob
from agentgym.envs.web.miniwob.site import html_folder
from agentgym.envs.web.miniwob.tasks import ENV_ID, generate_task, suite_pages
from agentgym.policies.base import GenerateRequest
from agentgym.policies.expert import ExpertPolicy
from agentgym.records import Completion, Task
from agentgym.rollouts.engine import Engine, GroupSpec

ROUNDS = 3
SELENIUM_PAGES = (
    "click-button",
    "click-checkboxes",
    "click-checkboxes-large",
    "enter-text",
    "click-option",
)
_SELENIUM_EPISODES = 10
_CONTEXTS = 8
_KILLS = 20
_LEAK_EPISODES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The actions of one episode."""

    task: Task
    """What is played."""
    calls: tuple[tuple[str, dict[str, Any]], ...]
    """Tools and arguments."""
    texts: tuple[str, ...]
    """The same as an agent writes them."""


def record(env: Any, tasks: Sequence[Task]) -> list[Script]:
    """Return what the scripted solutions do."""
    scripts: list[Script] = []
    for task in tasks:
        env.reset(seed=0, options={"task": task})
        texts: list[str] = []
        is_over = False
        while not is_over:
            texts.append(env.expert())
            _, _, is_over, _, _ = env.step(texts[-1])
        calls = tuple(
            (call.name, dict(call.arguments))
            for text in texts
            for call in env.protocol.parse(text, env.tools).calls
        )
        scripts.append(Script(task=task, calls=calls, texts=tuple(texts)))
    return scripts


# -- speed -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Pace:
    """Actions with the seconds they took; it grows as episodes are played."""

    actions: int = 0
    """Number of them."""
    reset_s: float = 0.0
    """Seconds of resets."""
    step_s: float = 0.0
    """Seconds of actions with their observations."""

    @property
    def whole(self) -> float:
        """Actions in a second, resets included."""
        return self.actions / (self.reset_s + self.step_s)

    @property
    def alone(self) -> float:
        """Actions in a second, without the resets."""
        return self.actions / self.step_s

    def add(self, other: Pace) -> None:
        """Count another one's in."""
        self.actions += other.actions
        self.reset_s += other.reset_s
        self.step_s += other.step_s


def play_ours(env: Any, scripts: Sequence[Script]) -> Pace:
    """Return the pace of the environment."""
    pace = Pace()
    for script in scripts:
        start = time.perf_counter()
        env.reset(seed=0, options={"task": script.task})
        ready = time.perf_counter()
        reward, is_over = 0.0, False
        for text in script.texts:
            _, reward, is_over, _, _ = env.step(text)
        assert is_over
        assert reward == 1.0
        steps = len(script.texts)
        pace.add(Pace(actions=steps, reset_s=ready - start, step_s=time.perf_counter() - ready))
    return pace


class BarePlaywright:
    """A loop of Playwright's own calls: fresh context, page, clock, actions, the page's text."""

    def __init__(self, executable: str) -> None:
        self._manager: Any = import_module("playwright.sync_api").sync_playwright()
        self._browser = self._manager.start().chromium.launch(executable_path=executable)
        self._script = Path(miniwob.__file__).with_name("page.js").read_text(encoding="utf-8")

    def close(self) -> None:
        """End the browser."""
        self._browser.close()
        self._manager.__exit__(None, None, None)

    def play(self, scripts: Sequence[Script]) -> float:
        """Return actions in a second."""
        start = time.perf_counter()
        for script in scripts:
            self._episode(script)
        return sum(len(script.calls) for script in scripts) / (time.perf_counter() - start)

    def _episode(self, script: Script) -> None:
        seed, name = script.task.payload["seed"], script.task.payload["page"]
        context = self._browser.new_context(viewport={"width": 500, "height": 420})
        context.clock.install(time=1_704_110_400)
        context.clock.pause_at(1_704_110_401)
        context.add_init_script(f"({self._script.strip()})({seed});")
        page = context.new_page()
        page.goto((html_folder() / "miniwob" / f"{name}.html").as_uri())
        page.evaluate(f"({miniwob._START})({seed})")
        context.clock.run_for(100)
        seen = self._look(page)
        for tool, arguments in script.calls:
            self._act(page, tool, arguments)
            context.clock.run_for(1000)
            seen = self._look(page)
        assert seen["probed"]["reward"] == 1
        context.close()

    def _look(self, page: Any) -> dict[str, Any]:
        options = {"most": MOST_NODES, "skip": miniwob._SKIP, "at": False}
        seen = page.evaluate(
            "async options => { await window.__agentgym.pictures();"
            " const seen = window.__agentgym.snapshot(options);"
            f" seen.probed = ({miniwob._PROBE})(); return seen; }}",
            options,
        )
        view = View(url=page.url, tabs=(seen["title"],), tab=0, nodes=read_nodes(seen["nodes"]))
        assert view.text()
        return seen

    def _act(self, page: Any, tool: str, arguments: dict[str, Any]) -> None:
        match tool:
            case "click":
                place = page.evaluate("id => __agentgym.locate(id)", arguments["id"])
                page.mouse.click(place["x"], place["y"])
            case "type":
                place = page.evaluate("id => __agentgym.edit(id)", arguments["id"])
                if place.get("isSet"):
                    values = [arguments["id"], arguments["text"]]
                    page.evaluate("values => __agentgym.setValue(...values)", values)
                else:
                    page.keyboard.type(arguments["text"])
            case "select":
                values = [arguments["id"], arguments["option"]]
                page.evaluate("values => __agentgym.choose(...values)", values)
            case _:
                page.keyboard.press(arguments["key"])


def speed(executable: str) -> None:
    """Print the speed beside the bare loop."""
    env = registry.make(ENV_ID)
    tasks = [generate_task(0, split="held_out", task=page) for page in suite_pages()]
    scripts = record(env, tasks)
    bare = BarePlaywright(executable)
    ours: list[float] = []
    theirs: list[float] = []
    try:
        for _ in range(ROUNDS):
            ours.append(play_ours(env, scripts).whole)
            theirs.append(bare.play(scripts))
    finally:
        bare.close()
        env.close()
    actions = sum(len(script.texts) for script in scripts)
    print(f"{len(scripts)} episodes of {len(scripts)} pages, {actions} actions, {ROUNDS} rounds")
    print(f"  environment      {_spread(ours)} steps/s, resets included")
    print(f"  bare Playwright  {_spread(theirs)} steps/s")
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    print(f"  ratio            {_spread(ratios)}")


# -- the package's own environment -------------------------------------------------------------


class SeleniumMiniwob:
    """The environment of the package miniwob, played by a few lines for four pages."""

    def __init__(self, page: str) -> None:
        import gymnasium

        gymnasium.register_envs(import_module("miniwob"))
        self._env: Any = gymnasium.make(f"miniwob/{page}-v1")
        self._page = page

    def close(self) -> None:
        """End its browser."""
        self._env.close()

    def play(self, episodes: int) -> Pace:
        """Return its pace; each episode must be solved."""
        pace = Pace()
        for seed in range(episodes):
            start = time.perf_counter()
            observation, _ = self._env.reset(seed=seed)
            ready = time.perf_counter()
            reward, is_over = 0.0, False
            actions = 0
            while not is_over:
                action = self._act(observation)
                observation, reward, is_over, _, _ = self._env.step(action)
                actions += 1
            assert reward > 0
            took = time.perf_counter() - ready
            pace.add(Pace(actions=actions, reset_s=ready - start, step_s=took))
        return pace

    def _act(self, observation: dict[str, Any]) -> Any:
        types = import_module("miniwob.action").ActionTypes
        goal, elements = observation["utterance"], observation["dom_elements"]
        create = self._env.unwrapped.create_action
        texts = {element["text"].strip(): element["ref"] for element in elements}
        quoted = re.findall(r'"([^"]*)"', goal)
        submit = next((e["ref"] for e in elements if e["text"] == "Submit"), None)
        if self._page == "click-button":
            found = [e["ref"] for e in elements if e["tag"] == "button" and e["text"] == quoted[0]]
            return create(types.CLICK_ELEMENT, ref=found[0])
        if self._page == "enter-text":
            field = next(e for e in elements if e["tag"] == "input_text")
            if field["value"] == quoted[0]:
                return create(types.CLICK_ELEMENT, ref=submit)
            if not field["flags"][0]:
                return create(types.CLICK_ELEMENT, ref=field["ref"])
            return create(types.TYPE_TEXT, text=quoted[0])
        wanted = goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
        for number, element in enumerate(elements):
            if element["tag"] in {"input_checkbox", "input_radio"}:
                label = next(e for e in elements[number:] if e["tag"] == "t")
                if label["text"].strip() in wanted and element["value"] != "True":
                    return create(types.CLICK_ELEMENT, ref=element["ref"])
        assert texts
        return create(types.CLICK_ELEMENT, ref=submit)


def selenium(executable: str) -> None:
    """Print the speed beside the package's own environment, page by page."""
    os.environ.setdefault("SE_OFFLINE", "true")
    os.environ.setdefault("SE_AVOID_STATS", "true")
    env = registry.make(ENV_ID)
    theirs, ours = Pace(), Pace()
    try:
        for page in SELENIUM_PAGES:
            tasks = [generate_task(n, task=page) for n in range(_SELENIUM_EPISODES)]
            scripts = record(env, tasks)
            other = SeleniumMiniwob(page)
            try:
                other.play(2)  # the browser's start is not counted, nor is ours
                other_pace = other.play(_SELENIUM_EPISODES)
            finally:
                other.close()
            pace = play_ours(env, scripts)
            _compare(page, other_pace, pace)
            theirs.add(other_pace)
            ours.add(pace)
    finally:
        env.close()
    _compare("all", theirs, ours)


def _compare(page: str, theirs: Pace, ours: Pace) -> None:
    print(
        f"  {page:22} steps/s alone: selenium {theirs.alone:5.1f}, ours {ours.alone:5.1f}; "
        f"with resets: selenium {theirs.whole:5.1f}, ours {ours.whole:5.1f}"
    )


# -- memory, kills, leaks ----------------------------------------------------------------------


def memory_mb(pids: Sequence[int]) -> float:
    """Return the proportional memory of processes, in MB."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        total += int(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0])
    return total / 1024


def tree() -> list[int]:
    """Return the processes of the browsers."""
    return [pid for one in POOL.browsers for root in one.process_ids for pid in tree_of(root)]


def memory(executable: str) -> None:
    """Print the memory of one context, and of each further one."""
    envs = [registry.make(ENV_ID) for _ in range(_CONTEXTS + 1)]
    try:
        envs[0].reset(seed=0)
        time.sleep(2)
        one = memory_mb(tree())
        for number, env in enumerate(envs[1:], start=1):
            env.reset(seed=number)
        time.sleep(2)
        many = memory_mb(tree())
    finally:
        for env in envs:
            env.close()
    print(f"  driver, browser and 1 context: {one:.0f} MB; with {_CONTEXTS} more: {many:.0f} MB")
    print(f"  each further context: {(many - one) / _CONTEXTS:.1f} MB (proportional set size)")


class Saboteur(ExpertPolicy):
    """Kills the browser before the second action of each episode."""

    def act(self, env: Any, request: GenerateRequest) -> Completion:
        """Return the expert's action."""
        completion = super().act(env, request)
        if env.actions_taken == 1:
            main = [pid for pid in tree() if "--remote-debugging" in command_of(pid)]
            os.kill([pid for pid in main if "--type=" not in command_of(pid)][-1], signal.SIGKILL)
        return completion


def kills(executable: str) -> None:
    """Print what becomes of episodes whose browser is killed."""

    async def play() -> list[Any]:
        specs = [
            GroupSpec(
                id=f"g{n}", task=generate_task(n, task="click-checkboxes-large"), size=1, seed=n
            )
            for n in range(_KILLS)
        ]
        async with Engine(Saboteur(), max_concurrent=1, retries=0) as engine:
            groups = await engine.run_groups(specs)
        return [trajectory for group in groups for trajectory in group.trajectories]

    found = asyncio.run(play())
    failed = [one for one in found if one.failure and one.failure.kind == "infrastructure"]
    scored = [one for one in found if one.outcome is not None]
    print(f"  {len(found)} episodes, {len(failed)} infrastructure failures, {len(scored)} scored")


def leaks(executable: str) -> None:
    """Print what is held after 20 episodes and after a thousand."""
    env = registry.make(ENV_ID, task="click-option")
    try:
        start = time.perf_counter()
        for number in range(_LEAK_EPISODES):
            env.reset(seed=number)
            while not env.step(env.expert())[2]:
                pass
            if number in {19, _LEAK_EPISODES - 1}:
                print(f"  after {number + 1} episodes: {_held()}")
        print(f"  {time.perf_counter() - start:.0f} s")
    finally:
        env.close()
    close_browsers()
    left = [pid for pid in tree_of(os.getpid())[1:] if "chrom" in command_of(pid)]
    print(f"  after closing: {len(left)} processes of a browser")


def _held() -> str:
    browsers = POOL.browsers
    driver = browsers[0].process_ids[0]
    listening = [
        line
        for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()
        if f":{browsers[0].server.port:04X} " in line and " 0A " in line
    ]
    counts = {
        "browsers": len(browsers),
        "processes": len(tree()),
        "contexts": sum(len(browser.chromium.contexts) for browser in browsers),
        "ports": len(listening),
        "open files": len(os.listdir("/proc/self/fd")),
        "open files of the driver": len(os.listdir(f"/proc/{driver}/fd")),
        "MB": round(memory_mb([os.getpid(), *tree()])),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _spread(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.2f}" for value in values)
    return f"{statistics.median(values):6.2f} (each round: {shown})"


PARTS: dict[str, Callable[[str], None]] = {
    "speed": speed,
    "selenium": selenium,
    "memory": memory,
    "kills": kills,
    "leaks": leaks,
}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    chosen = parser.parse_args().parts or list(PARTS)
    executable = require_chromium("the web bench")
    for part in chosen:
        print(f"{part}:")
        PARTS[part](executable)
        close_browsers()


if __name__ == "__main__":
    main()
