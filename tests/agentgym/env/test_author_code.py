"""An author's mistake is told without its place, and as somebody else's.

What `start`, `respond` and `grade` give, sync or async, is looked at where they are called, and an
error in them names the environment, the function, the file and the line.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym import EnvError, Reply, TextEnv, ToolEnv, tool
from agentgym.checks.env import check_env
from agentgym.checks.report import Verdict
from agentgym.cli.doctor import _plugins
from agentgym.cli.main import main
from agentgym.config import InvalidInputError
from agentgym.env import registry
from agentgym.env.author_code import described
from agentgym.env.registry import register_env
from agentgym.errors import RegistryError
from agentgym.runs.preflight import checked_config

ENV = "test/author-v0"


class Sound(ToolEnv):
    reward_weights = {"looked_up": 0.5}  # noqa: RUF012 - as an author writes it
    system_prompt = "Say the word."

    def start(self, task: Any, rng: Any) -> Any:
        self.word = rng.choice(["red", "blue"]) + str(rng.randrange(1000))
        return "Which word?"

    @tool
    def look(self) -> Reply:
        """Read the word."""
        return Reply(self.word, rewards={"looked_up": 1.0})

    def grade(self, answer: str) -> Any:
        return answer == self.word


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    if ENV in registry.list_envs():
        registry.unregister_env(ENV)


def acting(request: Any) -> str:
    if request.turn == 0:
        return "<look></look>"
    return f"<answer>{request.messages[-1].content}</answer>"


def failure(env_class: type[Any]) -> str:
    register_env(ENV)(env_class)
    (record,) = agentgym.rollout(ENV, acting)
    assert record.failure is not None
    return record.failure.message


@pytest.mark.parametrize(
    ("function", "value", "says"),
    [
        ("start", None, "start must return text, the first observation (got None)"),
        ("start", b"x", "start must return text, the first observation (got b'x')"),
        ("grade", "yes", "grade must return a number in [0, 1] or a Reply (got 'yes')"),
        ("grade", 1.5, "grade must return a number in [0, 1] or a Reply (got 1.5)"),
        ("grade", float("nan"), "grade must return a number in [0, 1] or a Reply (got nan)"),
        ("respond", 5, "respond must return text or a Reply (got 5)"),
    ],
)
def test_a11_what_comes_back_is_looked_at(function: str, value: object, says: str) -> None:
    assert failure(type("Wrong", (Sound,), {function: lambda *_: value})) == f"{ENV}: {says}"


@pytest.mark.parametrize("function", ["start", "grade", "look"])
@pytest.mark.parametrize("is_async", [False, True])
def test_b7_error_in_an_authors_function_says_where(function: str, is_async: bool) -> None:
    def wrong(self: Any, *_: Any) -> Any:
        """Read the word."""
        return {}["no such thing"]

    async def wrong_later(self: Any, *_: Any) -> Any:
        """Read the word."""
        await asyncio.sleep(0)
        return {}["no such thing"]

    body: Any = wrong_later if is_async else wrong
    place = f"{body.__name__} ("
    body.__name__ = function  # of a tool it is what the agent calls
    body.__signature__ = inspect.signature(getattr(Sound, function))
    marked = tool(body) if function == "look" else body
    message = failure(type("Wrong", (Sound,), {function: marked}))
    assert message.startswith(f"KeyError: 'no such thing', raised in {ENV}, {place}")
    assert Path(__file__).name in message


def test_a4_start_respond_and_grade_are_awaited_on_the_running_loop() -> None:
    loops: set[int] = set()

    class Async(Sound):
        async def start(self, task: Any, rng: Any) -> Any:
            loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return super().start(task, rng)

        async def grade(self, answer: str) -> Any:
            loops.add(id(asyncio.get_running_loop()))
            return super().grade(answer)

    register_env(ENV)(Async)
    (record,) = agentgym.rollout(ENV, acting)
    assert (record.outcome, len(loops)) == (1.0, 1)
    env = agentgym.make(ENV)  # and from synchronous code, as Gymnasium's users call it
    assert env.reset(seed=1)[0] == "Which word?"
    assert env.step(f"<answer>{env.word}</answer>")[2] is True


def test_a4_async_respond_of_a_text_environment() -> None:
    class Echo(TextEnv):
        def start(self, task: Any, rng: Any) -> str:
            return "Say something."

        async def respond(self, action: Any) -> Any:
            await asyncio.sleep(0)
            return self.finish("Thanks.", outcome=float(action == "hello"))

    register_env(ENV)(Echo)
    assert agentgym.rollout(ENV, lambda _: "hello")[0].outcome == 1.0
    env = agentgym.make(ENV)
    env.reset(seed=0)
    assert env.step("hello")[1] == 1.0


def test_missing_and_wrong_functions_are_refused_at_registration() -> None:
    class Mute(TextEnv):
        def start(self, task: Any, rng: Any) -> str:
            return "hello"

    class Slow(Sound):
        async def expert(self) -> str:  # type: ignore[override]
            return ""

    class Words(Sound):
        def grade(self, answer: str) -> str:
            return "yes"

    for env_class, says in (
        (Mute, r"Mute must define respond\(self, action\)"),
        (Slow, "Slow.expert must not be async; only start, respond, grade and tools may"),
        (Words, r"Words.grade must return a number in \[0, 1\] or a Reply .*says str"),
    ):
        with pytest.raises(RegistryError, match=says):
            register_env(ENV)(env_class)
    with pytest.raises(NotImplementedError, match="must define respond"):
        Mute().respond(agentgym.Action("x"))


def test_half_a_surrogate_pair_in_an_observation_becomes_a_character() -> None:
    register_env(ENV)(type("Torn", (Sound,), {"start": lambda *_: "a\ud83d"}))
    assert agentgym.make(ENV).reset(seed=0)[0] == "a\ufffd"


@pytest.mark.parametrize(
    ("annotation", "says"), [("object", "does not say what 'x' is"), ("set[int]", "is a set")]
)
def test_a11_arguments_without_meaning_fail_the_check(annotation: str, says: str) -> None:
    def find(self: Any, x: Any) -> str:
        """Find something."""
        return str(x)

    find.__annotations__["x"] = eval(annotation)
    register_env(ENV)(type("Odd", (Sound,), {"find": tool(find)}))
    found = {f.name: f for f in check_env(ENV, episodes_each=1).findings}["declarations"]
    assert (found.verdict, says in found.message) == (Verdict.FAILED, True)


def test_a1_prompt_that_names_no_tool_fails_the_check() -> None:
    class Silent(Sound):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.system_prompt = "Say the word."

    register_env(ENV)(Silent)
    found = {f.name: f for f in check_env(ENV, episodes_each=1).findings}["declarations"]
    assert "the prompt names no tool (look) and no answer format (<answer>)" in found.message


def test_a6_expert_of_some_variants_alone_is_skipped_elsewhere() -> None:
    class Some(Sound):
        def expert(self) -> str:
            raise NotImplementedError("there is no expert for this game")

    register_env(ENV)(Some)
    names: list[str] = []
    found = {f.name: f for f in check_env(ENV, episodes_each=1, on_check=names.append).findings}
    assert found["expert"].verdict is Verdict.SKIPPED
    assert found["determinism"].verdict is Verdict.PASSED, found["determinism"]
    assert names[:2] == ["plays", "declarations"]


def test_a9_show_tells_the_users_class_and_cuts_what_is_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    register_env(ENV)(type("Long", (Sound,), {"start": lambda *_: "x" * 3_000_000}))
    assert main(["envs", "show", ENV]) == 0
    out = capsys.readouterr().out
    assert len(out) < 8_000
    assert "characters left out" in out
    assert "A subclass marks methods" not in out
    assert "limits: max_turns 16, max_observation_chars 16384" in out
    assert "named rewards: looked_up (weight 0.5)" in out


def test_a8_play_shows_named_rewards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register_env(ENV)(Sound)
    lines = iter(["<look></look>", ""])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert main(["envs", "play", ENV]) == 0
    assert "rewards: looked_up 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"), [("lookd_up", "did you mean 'looked_up'?"), ("looked_up", "")]
)
def test_a8_weights_of_unknown_rewards_are_refused(name: str, says: str) -> None:
    pytest.importorskip("torch")
    register_env(ENV)(Sound)
    settings = {
        "envs": [ENV],
        "preset": "trloo",
        "preset_overrides": {"rewards.turn.weights": {name: 0.5}},
        "warmstart.steps": 0,
    }
    with pytest.raises(InvalidInputError) as caught:  # a new model has nothing to begin with
        checked_config(settings=settings)
    text = str(caught.value)
    assert ("declares a turn reward" in text) == bool(says)
    assert says in text


def test_a8_named_rewards_are_metrics() -> None:
    pytest.importorskip("torch")
    from agentgym.trainers.loop.collect import _named_rewards

    register_env(ENV)(Sound)
    looked = agentgym.rollout(ENV, acting, tasks=1)
    blind = agentgym.rollout(ENV, lambda _: "<answer>x</answer>", tasks=1)
    # One episode looks once, the other never: 1 + 0 over 2 episodes.
    assert _named_rewards([*looked, *blind]) == {"reward_looked_up": 0.5}


def test_f48_a_broken_plug_in_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.entry_points
    broken = EntryPoint(name="lab/broken", value="no_such_package:suite", group="agentgym.tasks")

    def points(**asked: Any) -> Any:
        if asked.get("group") == "agentgym.tasks" and asked.get("name", broken.name) == broken.name:
            return [*real(**asked), broken]
        return real(**asked)

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    monkeypatch.setitem(registry._conflicts, "lab/odd-v0", "lab/odd-v0: the target must read x")
    assert main(["tasks", "list"]) == 0
    out = capsys.readouterr().out
    assert "No module named 'no_such_package'" in out
    assert "math/arithmetic" in out
    assert main(["envs", "list"]) == 0
    assert "broken: lab/odd-v0: the target must read x" in capsys.readouterr().out
    assert [(what, state) for what, state, _ in _plugins()] == [("plug-in lab/broken", "broken")]


def test_described_says_type_and_message_of_what_is_not_ours() -> None:
    assert described(EnvError("too long\n")) == "too long"
    assert described(KeyError("a")) == "KeyError: 'a'"
    assert described(ValueError()) == "ValueError"
