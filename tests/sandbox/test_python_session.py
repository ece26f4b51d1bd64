"""Python sessions: names live on, mistakes are output, what ends a session is said."""

from __future__ import annotations

import threading

import pytest

from agentgym.sandbox.base import Reply
from agentgym.sandbox.python_session import SHORT_CHARS, PythonSession, joined_sources, read_answer


@pytest.fixture
async def session(make_box):
    async with make_box() as box:
        yield PythonSession(box)


async def test_names_live_from_cell_to_cell(session: PythonSession) -> None:
    assert (await session.run("x = 20")).observation() == "[no output]"
    assert (await session.run("print('x is', x)\nx + 1")).output == "x is 20\n21\n"


async def test_a_last_expression_of_none_is_not_shown(session: PythonSession) -> None:
    assert (await session.run("print('a')\nNone")).output == "a\n"


async def test_output_of_programs_and_errors_comes_in_order(session: PythonSession) -> None:
    code = "import os, sys\nprint(1)\nos.system('echo 2')\nprint(3, file=sys.stderr)\nprint(4)"
    assert (await session.run(code)).output == "1\n2\n3\n4\n0\n"[:8]


async def test_a_traceback_shows_the_cells_lines_and_not_ours(session: PythonSession) -> None:
    result = await session.run("def f(a):\n    return a / 0\nf(1)")
    assert result.raised == "ZeroDivisionError"
    assert "return a / 0" in result.output
    assert result.output.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "do_run" not in result.output
    assert (await session.run("f.__name__")).output == "'f'\n"


async def test_a_syntax_error_is_output(session: PythonSession) -> None:
    result = await session.run("def f(:")
    assert result.raised == "SyntaxError"
    assert result.is_state_lost is False


async def test_an_error_in_an_earlier_cells_function_shows_both(session: PythonSession) -> None:
    await session.run("def g():\n    raise KeyError('inner')")
    output = (await session.run("g()")).output
    assert "<cell 1>" in output
    assert "<cell 2>" in output


async def test_sys_exit_ends_the_cell_only(session: PythonSession) -> None:
    await session.run("x = 5")
    assert (await session.run("import sys\nsys.exit(3)")).raised == "SystemExit"
    assert (await session.run("x")).output == "5\n"


async def test_a_hard_exit_ends_the_session_and_says_so(session: PythonSession) -> None:
    result = await session.run("import os\nprint('bye', flush=True)\nos._exit(3)")
    assert result.is_state_lost
    assert result.observation() == "bye\n[the Python session ended; its variables are gone]"
    assert (await session.run("1 + 1")).output == "2\n"


async def test_a_time_limit_keeps_the_output_and_loses_the_names_e7_e8(session) -> None:
    code = (
        "x = 1\nprint('step1', flush=True)\n"
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    )
    result = await session.run(code, timeout_s=0.7)
    assert result.timed_out
    assert result.is_state_lost
    assert result.observation().startswith("step1\n[time limit reached after 0.")
    assert (await session.run("x")).raised == "NameError"


async def test_the_end_of_a_long_output_is_kept_e5(session: PythonSession) -> None:
    code = "print('x' * 1000000)\nraise ValueError('END')"
    result = await session.run(code, output_limit=4096)
    assert result.output_truncated
    assert "ValueError: END" in result.output
    assert len(result.output) < 5000


async def test_input_finds_its_end(session: PythonSession) -> None:
    assert (await session.run("input()")).raised == "EOFError"


async def test_unusual_text_is_carried(session: PythonSession) -> None:
    assert (await session.run("print('ä€😀\\x00\\x1e')")).output == "ä€😀\x00\x1e\n"
    assert (await session.run("'\ud800'")).raised is None


async def test_a_false_answer_cannot_be_printed(session: PythonSession) -> None:
    """The marker is random for each message, and the session's own is the first to come."""
    code = "import os\nos.write(1, b'<{}><{\"raised\": null}>')\nraise ValueError"
    result = await session.run(code)
    assert result.raised == "ValueError"


async def test_an_answer_after_the_deadline_does_not_count(make_box) -> None:
    """Written when the program is about to be killed: the reply has a time-out and no message."""
    marker = "k" * 16
    async with make_box() as box:
        for wait in (0.195, 0.2, 0.205):
            code = f"import time; time.sleep({wait}); print('{marker}<late{marker}>', flush=True)"
            process = await box.start_process(["python3", "-c", f"{code}; time.sleep(9)"])
            reply = await process.interact(b"x", marker=marker, timeout_s=0.2)
            assert (reply.message is None) is reply.timed_out
            assert process.is_alive is (not reply.timed_out)
            await process.stop()


async def test_calls_take_and_give_values(session: PythonSession) -> None:
    await session.run("def f(a, b=0): return {(a, b): {1, 2}}")
    result = await session.call("f", [1], keywords={"b": 2})
    assert result.value == {(1, 2): {1, 2}}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import os; os._exit(0)", "the program ended"),
        ("while True: pass", "time limit reached"),
        ("return [[]] * 5000 + [f]", None),
        ("return {n * (2**61 - 1) for n in range(2000)}", "the returned value cannot be read"),
        ("return 10 ** 6000", "the returned value cannot be read"),
    ],
)
async def test_calls_say_what_went_wrong(session, body: str, problem: str | None) -> None:
    await session.run(f"def f():\n    {body}")
    assert (await session.call("f", [], timeout_s=1)).problem == problem


async def test_a_name_that_is_not_there_is_a_problem(session: PythonSession) -> None:
    assert (await session.call("g", [])).problem == "KeyError: 'g'"


def test_sources_are_joined_in_place_of_the_import() -> None:
    joined = joined_sources("A = 1\n", "from m import A\nprint(A)\n", "from m import A\n")
    assert joined == b"from __future__ import annotations\nA = 1\nprint(A)\n"
    with pytest.raises(Exception, match="lacks the line"):
        joined_sources("", "print(1)", "from m import A\n")


@pytest.mark.parametrize("extra", [0, 1])
async def test_f25_a_long_answer_is_not_read_in_the_event_loop(extra: int) -> None:
    """The loop serves every box of the process."""
    reply = Reply(output="", message="x" * (SHORT_CHARS + extra))
    thread = await read_answer(reply, lambda reply: threading.current_thread())
    assert (thread is threading.main_thread()) is (extra == 0)


async def test_f25_a_value_that_is_passed_on_is_not_decoded(session: PythonSession) -> None:
    await session.run("def f(x):\n    return {x + n * (2**61 - 1) for n in range(2000)}")
    result = await session.relay("f", [7], {"!": "dict", "v": []})
    assert (result.value, result.problem) == (None, None)
    assert result.answer is not None
    assert len(result.answer["value"]["v"]) == 2000
