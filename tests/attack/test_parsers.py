"""Time of reading hostile text: it grows with the length, and not with its square.

The shapes of fault F33, and what `tests/tools/slow_inputs.py` found. Processor time of the fastest
of some readings: other work on the machine makes a reading slower and never faster.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.attack

TESTS = Path(__file__).parents[1]
SHORT, LONG = 100_000, 1_000_000
MOST_GROWTH = 20
"""For ten times the length. Linear work was read as at most 12 for 73 of the 77 cases on a quiet
machine, and 12.4 to 13.7 for four; as up to 18 on one with ten times more work than processors. The
square reads as 100."""
QUICK_S = 0.02
"""Below this the clock says nothing of growth."""
ATTEMPTS = 4

SHAPES = (
    *(("tagged_text", "", unit, "") for unit in ("<search>", "<answer>", "<a>", "</think>")),
    *(("tagged_text", "<think>", unit, "</think>") for unit in ("<search>", "<answer>")),
    ("tagged_text", "<search><query>x</query>", "<a></a>", "</search>"),
    ("tagged_text", "<search>", "<query></query>", "</search>"),
    ("tagged_text", "", "<search>x</search>", ""),
    *(("tagged_json", "", unit, "") for unit in ("<tool_call>", "<answer>", "<tool_call>[")),
    ("tagged_json", "<think>", "<tool_call>", "</think>"),
    ("tagged_json", "<tool_call>[", '{"name":"f","arguments":{}},', "1]</tool_call>"),
    ("tagged_json", "<tool_call>", "\n", ""),
    *(("openai_tools", "", unit, "") for unit in ("{\n", "{", "[", '{"a":', '[{"name":"f",')),
    ("openai_tools", "{", "\n", ""),
    ("python_block", "", "```python\n", ""),
    ("python_block", "````python\n", "```\n", ""),
    ("python_block", "", "<answer>", ""),
    ("boxes", "", "\\boxed{", ""),
    ("answers", "a", "\u0301\u0316", ""),
    ("query", "a", "\u0f73", ""),
)


@pytest.fixture(scope="module")
def slow_inputs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slow_inputs", TESTS / "tools" / "slow_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[Mapping[str, str]]:
    file = TESTS / "data" / "slow_inputs.json"
    found: list[Mapping[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    shapes: list[Mapping[str, str]] = [
        {"reader": reader, "begin": begin, "unit": unit, "end": end}
        for reader, begin, unit, end in SHAPES
    ]
    return [*shapes, *found]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case['reader']}-{case['unit']!a}")
def test_f33_time_grows_with_the_length(slow_inputs: ModuleType, case: Mapping[str, str]) -> None:
    short = long = unit = tenth = float("inf")
    for _ in range(ATTEMPTS):
        short = min(short, slow_inputs.seconds(case, SHORT, 2))
        long = min(long, slow_inputs.seconds(case, LONG, 1))
        tenth = min(tenth, slow_inputs.seconds(slow_inputs.LINEAR, SHORT, 2))
        unit = min(unit, slow_inputs.seconds(slow_inputs.LINEAR, LONG, 1))
        # On a busy machine, and beyond its caches, ten times the work takes more than ten times.
        allowed = MOST_GROWTH * max(unit / tenth / 10, 1.0)
        if long <= max(allowed * short, QUICK_S):
            return
    pytest.fail(f"{long:.2f} s for a million characters, {short:.3f} s for a tenth of them")
