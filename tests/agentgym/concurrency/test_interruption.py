"""Ctrl-C is answered at once, and a second one ends the process whatever it computes.

Class: *silence after a request* (F47).
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from agentgym.concurrency.interruption import STOPPING

WORK = """
import asyncio, signal, time
from agentgym.concurrency.interruption import run_interruptible

signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal

async def work():
    print("ready", flush=True)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        print("saving", flush=True)
        BUSY
        print("saved", flush=True)
        raise

try:
    run_interruptible(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def start(busy: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK.replace("BUSY", busy)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_f47_ctrl_c_is_answered_before_the_work_has_ended(number: signal.Signals) -> None:
    process = start("time.sleep(600)")
    assert process.stderr is not None
    process.send_signal(number)
    assert process.stderr.readline() == f"{STOPPING}\n"
    process.kill()
    process.communicate()


def test_f47_the_state_is_saved_after_one_ctrl_c() -> None:
    process = start("pass")
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert out == "saving\nsaved\ninterrupted\n"
    assert error == f"{STOPPING}\n"
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_f47_the_second_ctrl_c_ends_the_process_at_once(number: signal.Signals) -> None:
    process = start("time.sleep(600)")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert out == ""
    assert process.returncode == -number
