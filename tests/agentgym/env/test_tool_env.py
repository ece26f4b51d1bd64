"""`ToolEnv`: calls, mistakes as observations, sync and async, limits of an author's effort."""

import ast
import asyncio
import inspect
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym.concurrency.threads import use_executor
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import EnvError, InfrastructureError, ToolError
from agentgym.records import ErrorKind, FinishReason
from agentgym.tool_formats.openai_tools import OpenAITools
from agentgym.tool_formats.tagged_json import TaggedJson
from agentgym.tool_formats.tools import tool


class Desk(ToolEnv):
    protocol = TaggedJson()

    def start(self, task: object, rng: object) -> str:
        self.ran: list[str] = []
        self.threads: set[str] = set()
        return "go"

    @tool
    def add(self, x: int, y: int = 0) -> int:
        """Add two numbers."""
        self.ran.append(f"add {x} {y}")
        self.threads.add(threading.current_thread().name)
        return x + y

    @tool
    async def slow(self, text: str) -> str:
        """Wait, then say it."""
        await asyncio.sleep(0)
        self.ran.append(text)
        return text

    @tool
    def fail(self, how: str) -> str:
        """Fail in some way."""
        if how == "agent":
            raise ToolError("that cannot be done")
        if how == "server":
            raise InfrastructureError("server is down")
        raise ZeroDivisionError(how)

    @tool
    def finish_with(self, score: float) -> Reply:
        """End the episode."""
        return Reply(observation="bye", outcome=score, rewards={"polite": 1.0})

    def grade(self, answer: str) -> float:
        return float(answer == "4")


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>'


@pytest.fixture
def desk() -> Desk:
    env = Desk()
    env.reset(seed=1)
    return env


def test_results_come_back_in_the_order_of_the_calls_c2(desk: Desk) -> None:
    text = call("add", '{"x":1}') + call("slow", '{"text":"b"}') + call("add", '{"x":2,"y":3}')
    observation, reward, terminated, truncated, info = desk.step(text)
    assert [r.text for r in info["tool_results"]] == ["1", "b", "5"]
    assert [r.call_id for r in info["tool_results"]] == ["call_0", "call_1", "call_2"]
    assert desk.ran == ["add 1 0", "b", "add 2 3"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation.index("1") < observation.index("b") < observation.index("5")


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (call("add", '{"x":"2026-01-15"}'), ErrorKind.MODEL, "'x' must be an integer"),  # C6
        (call("ad", '{"x":1}'), ErrorKind.MODEL, "unknown tool 'ad' (did you mean 'add'?)"),  # C10
        (call("fail", '{"how":"agent"}'), ErrorKind.MODEL, "that cannot be done"),
        ("<tool_call>{oops}</tool_call>", ErrorKind.FORMAT, "not JSON"),  # C11
        ("<think>hm", ErrorKind.FORMAT, "</think>"),
        ("hello", ErrorKind.FORMAT, "call a tool (add, slow, fail, finish_with) or answer"),
        ("", ErrorKind.FORMAT, "<answer>"),
    ],
)
def test_mistake_of_the_agent_is_an_observation_c6_c10(
    desk: Desk, text: str, kind: ErrorKind, says: str
) -> None:
    observation, reward, terminated, truncated, info = desk.step(text)
    assert says in observation
    assert info["error_kind"] is kind
    assert (reward, terminated, truncated, desk.ran) == (0.0, False, False, [])


def test_one_bad_call_does_not_stop_the_others_c2(desk: Desk) -> None:
    _, _, _, _, info = desk.step(call("ad", "{}") + call("add", '{"x":1}'))
    assert [(r.error_kind, r.text) for r in info["tool_results"]][1] == (None, "1")
    assert info["error_kind"] is ErrorKind.MODEL


@pytest.mark.parametrize(
    ("how", "error"), [("server", InfrastructureError), ("bug", ZeroDivisionError)]
)
def test_other_exceptions_leave_the_step(desk: Desk, how: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        desk.step(call("fail", f'{{"how":"{how}"}}'))


def test_answer_is_graded_and_ends(desk: Desk) -> None:
    _, reward, terminated, _, info = desk.step("<answer> 4 </answer>")
    assert (reward, terminated, info["outcome"]) == (1.0, True, 1.0)
    with pytest.raises(EnvError, match="call reset first"):
        desk.step("again")


def test_answer_behind_a_call_is_not_taken(desk: Desk) -> None:
    observation, _, terminated, _, info = desk.step(call("add", '{"x":1}') + "<answer>4</answer>")
    assert not terminated
    assert "was not taken" in observation
    assert info["error_kind"] is ErrorKind.FORMAT


def test_tool_may_end_the_episode(desk: Desk) -> None:
    text = call("finish_with", '{"score":0.5}') + call("add", '{"x":1}')
    _, reward, terminated, _, info = desk.step(text)
    assert (terminated, info["outcome"], info["rewards"]) == (True, 0.5, {"polite": 1.0})
    assert reward == 0.5  # 'polite' has no weight
    assert desk.ran == []  # calls behind the end are not run
    assert len(info["tool_results"]) == 1


@pytest.mark.parametrize("text", [call("add", '{"x":1}'), "<answer>4</answer>"])
def test_cut_off_turn_executes_nothing_c4_c5(desk: Desk, text: str) -> None:
    observation, _, terminated, _, info = desk.step(Action(text, finish_reason=FinishReason.LENGTH))
    assert "cut off" in observation
    assert (info["error_kind"], terminated, desk.ran) == (ErrorKind.TRUNCATED, False, [])


def test_action_without_parse_is_parsed_by_the_environment(desk: Desk) -> None:
    _, reward, terminated, _, _ = desk.step(Action("<answer>4</answer>"))
    assert (reward, terminated) == (1.0, True)


async def test_sync_step_works_inside_a_running_loop(desk: Desk) -> None:
    observation, *_ = desk.step(call("slow", '{"text":"inside"}'))
    assert "inside" in observation


@pytest.mark.parametrize("tools", [None, ["add", "fail"]])  # with an async tool and without
async def test_astep_gives_what_step_gives(tools: list[str] | None) -> None:
    texts = [call("add", '{"x":1}'), "hello", call("ad", "{}"), "<answer>4</answer>"]
    one, two = Desk(tools=tools), Desk(tools=tools)
    one.reset(seed=1)
    two.reset(seed=1)
    for text in texts:
        assert one.step(text) == await two.astep(text)


async def test_astep_of_a_cut_off_turn_executes_nothing_c4(desk: Desk) -> None:
    action = Action(call("slow", '{"text":"x"}'), finish_reason=FinishReason.LENGTH)
    _, _, _, _, info = await desk.astep(action)
    assert (info["error_kind"], desk.ran) == (ErrorKind.TRUNCATED, [])


@pytest.mark.parametrize("tools", [None, ["add", "fail"]])
async def test_blocking_tools_run_in_the_engines_threads(tools: list[str] | None) -> None:
    env = Desk(tools=tools)
    env.reset(seed=1)
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as pool, use_executor(pool):
        await env.astep(call("add", '{"x":1}'))
    assert {name.partition("_")[0] for name in env.threads} == {"engine"}


async def test_async_tools_of_two_episodes_overlap() -> None:
    # Both must be inside their tool at once, or neither gets on.
    barrier = asyncio.Barrier(2)

    class Meeting(ToolEnv):
        @tool
        async def meet(self) -> str:
            """Wait for the other one."""
            await barrier.wait()
            return "met"

    envs = [Meeting(), Meeting()]
    for env in envs:
        env.reset(seed=1)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*(env.astep("<meet></meet>") for env in envs))
    assert [result[0] for result in results] == ["met", "met"]


def test_tools_can_be_switched_off() -> None:
    env = Desk(tools=["add"])
    env.reset(seed=1)
    assert [t.name for t in env.tools] == ["add"]
    assert "slow" not in env.system_prompt
    observation, *_ = env.step(call("slow", '{"text":"x"}'))
    assert "unknown tool 'slow'" in observation
    assert Desk(tools=()).tools == ()
    with pytest.raises(EnvError, match=r"no tool 'ad' \(did you mean 'add'\?\)"):
        Desk(tools=["ad"])


def test_a1_system_prompt_holds_the_instructions_unless_told_otherwise() -> None:
    class Own(Desk):
        system_prompt = "Be brief."

    class Silent(Own):
        tells_tools = False

    class Filled(Desk):
        system_prompt = "Be {brief}. {tools}"

    assert Silent().system_prompt == "Be brief."
    assert Own().system_prompt == "Be brief.\n" + Desk().system_prompt
    assert Filled().system_prompt.startswith("Be {brief}. You can call these tools:")
    assert '"name": "add"' in Desk().system_prompt


def test_role_of_results_is_the_protocols() -> None:
    class Chat(Desk):
        protocol = OpenAITools()

    env = Chat()
    env.reset(seed=1)
    _, _, _, _, info = env.step('{"name":"add","arguments":{"x":1}}')
    assert info["role"] == "tool"
    _, _, _, _, info = env.step("It is 4.")
    assert info["role"] == "user"


def test_grade_must_be_defined() -> None:
    env = ToolEnv()
    env.reset(seed=1)
    with pytest.raises(NotImplementedError, match=r"must define grade\(answer\)"):
        env.step("<answer>4</answer>")


# -- the simplest environments -----------------------------------------------------------------

SIMPLEST_TEXT = """
    from agentgym import TextEnv, register_env

    @register_env("test/parrot-v0")
    class Parrot(TextEnv):
        def start(self, task, rng):
            self.word = rng.choice(["red", "blue", "green"])
            return f"Say {self.word} twice."

        def respond(self, action):
            return self.finish(outcome=float(action.split() == [self.word] * 2))
"""
SIMPLEST_TOOL = '''
    from agentgym import ToolEnv, register_env, tool

    @register_env("test/lookup-v0")
    class Lookup(ToolEnv):
        def start(self, task, rng):
            self.code = str(rng.randrange(1000))
            return "What is the code?"

        @tool
        def look(self, place: str) -> str:
            """Look somewhere."""
            return self.code if place == "drawer" else "nothing"

        def grade(self, answer):
            return float(answer == self.code)
'''


def code_lines(source: str) -> int:
    """Return lines of code: neither blank, nor comment, nor docstring."""
    tree = ast.parse(textwrap.dedent(source))
    docs = {
        node.body[0].lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node)
    }
    lines = textwrap.dedent(source).splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docs
        for number, line in enumerate(lines, start=1)
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [(SIMPLEST_TEXT, "Parrot"), (SIMPLEST_TOOL, "Lookup")],
)
def test_simplest_environment_takes_twelve_lines(source: str, name: str) -> None:
    from agentgym.env import registry

    assert code_lines(source) <= 12
    namespace: dict[str, object] = {"__name__": "simplest"}
    exec(compile(textwrap.dedent(source), "simplest.py", "exec"), namespace)
    try:
        env = namespace[name]
        assert inspect.isclass(env)
        assert issubclass(env, TextEnv)
        made = env()
        made.reset(seed=2)
        if name == "Parrot":
            word = str(vars(made)["word"])
            assert made.step(f"{word} {word}")[1] == 1.0
        else:
            code, *_ = made.step("<look>drawer</look>")
            assert made.step(f"<answer>{code}</answer>")[1] == 1.0
    finally:
        for env_id in ("test/parrot-v0", "test/lookup-v0"):
            if env_id in registry.list_envs():
                registry.unregister_env(env_id)
