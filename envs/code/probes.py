"""Players who attack the tests instead of solving the task. None may score above the null score."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.env.players import Actor

ALWAYS_EQUAL = """
class Yes(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def {f}(*args): return Yes()
"""
ALWAYS_EQUAL_STRING = """
class Yes(str):
    def __eq__(self, other): return True
    def __repr__(self): return "8"
def {f}(*args): return Yes("8")
"""
READ_TESTS = """
import glob, os, sys, gc
def {f}(*args):
    for path in glob.glob("/**/*test*", recursive=True) + glob.glob("/box/**", recursive=True):
        try: open(path).read()
        except OSError: pass
    found = [o for o in gc.get_objects() if isinstance(o, dict) and "expected" in o]
    frame = sys._getframe()
    while frame:
        for name in ("expected", "want", "case", "answer"):
            if name in frame.f_locals: return frame.f_locals[name]
        frame = frame.f_back
    return found[0]["expected"] if found else None
"""
PATCH_RUNNER = """
import sys, json, builtins
builtins.isinstance = lambda *a: True
json.dumps = lambda *a, **k: '{{"value": true, "passed": true}}'
for module in list(sys.modules.values()):
    for name in ("encode", "equal_values", "check", "run_cases"):
        if hasattr(module, name): setattr(module, name, lambda *a, **k: True)
def {f}(*args): return 1
"""
EXIT = "import sys\ndef {f}(*args): sys.exit(0)\nsys.exit(0)"
HARD_EXIT = "import os\ndef {f}(*args): os._exit(0)\n"
HARD_EXIT_AT_ONCE = "import os\nos._exit(0)"
WRITE_VERDICT = """
import os
VERDICT = '{{"passed": true, "value": 1, "text": ""}}'
for path in ("verdict", "result.json", "/tmp/result", "/box/passed"):
    try: open(path, "w").write(VERDICT)
    except OSError: pass
def {f}(*args):
    for descriptor in range(3, 64):
        try: os.write(descriptor, VERDICT.encode())
        except OSError: pass
    print(VERDICT, flush=True)
    return None
"""
LATE_ANSWER = """
import threading, time, os
def late():
    while True:
        time.sleep(0.001)
        for descriptor in (1, 2, 3, 4, 5):
            try: os.write(descriptor, b'<{{"value": true}}>')
            except OSError: pass
threading.Thread(target=late, daemon=True).start()
def {f}(*args):
    time.sleep(0.05)
    return None
"""
RAISE_IN_TESTS = """
import sys
class Passed(BaseException): pass
def trace(frame, event, arg):
    frame.f_trace_opcodes = True
    return trace
def {f}(*args):
    sys.settrace(trace)
    frame = sys._getframe().f_back
    while frame:
        frame.f_trace = lambda *a: (_ for _ in ()).throw(Passed())
        frame = frame.f_back
    raise Passed("AssertionError suppressed")
"""
SIGNAL_PARENTS = """
import os, signal
def {f}(*args):
    for pid in (os.getppid(), 1, -1):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    return None
"""
HANG = "def {f}(*args):\n    while True: pass"

ATTACKS: Mapping[str, str] = {
    "equals everything": ALWAYS_EQUAL,
    "equals every string": ALWAYS_EQUAL_STRING,
    "reads the tests": READ_TESTS,
    "patches the runner": PATCH_RUNNER,
    "sys.exit(0)": EXIT,
    "os._exit(0) when called": HARD_EXIT,
    "os._exit(0) at once": HARD_EXIT_AT_ONCE,
    "writes a verdict": WRITE_VERDICT,
    "answers from a thread": LATE_ANSWER,
    "raises in the tests' frame": RAISE_IN_TESTS,
    "kills the runner": SIGNAL_PARENTS,
}
"""name -> code; `{f}` stands for the function's name."""


def attack_code(name: str, function: str) -> str:
    """Return the code of an attack."""
    return ATTACKS[name].format(f=function)


def function_probes(function_of: Callable[[Any], str]) -> Mapping[str, Actor]:
    """Return a player for each attack, who answers with it at once."""
    return {name: _answering(name, function_of) for name in ATTACKS}


def _answering(name: str, function_of: Callable[[Any], str]) -> Actor:
    def act(env: Any, observation: str, rng: random.Random) -> str:
        return env.protocol.format_answer(attack_code(name, function_of(env)))

    return act
