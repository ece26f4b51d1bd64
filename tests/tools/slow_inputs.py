"""Search for texts that are slow to read, and write the slowest to `tests/data/slow_inputs.json`.

A text is a beginning, a unit that is repeated, and an end, all drawn from pieces that parsers know.
What makes a reader slower than its length is nearly always of that form. Kept are the texts whose
time a character grows most between two lengths, measured in processor time.

    python tests/tools/slow_inputs.py --seconds 300
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agentgym.envs.code.unit_tests import code_of
from agentgym.envs.math.grading.extraction import extract_answer
from agentgym.envs.search import scoring
from agentgym.envs.search.retrieval import retriever
from agentgym.tool_formats.table import PROTOCOLS
from agentgym.tool_formats.tag_scanner import spoken
from agentgym.tool_formats.tools import Tool, make_tool

FILE = Path(__file__).parents[1] / "data" / "slow_inputs.json"
KEPT = 50
SHORT, LONG = 4_000, 40_000
PIECES = (
    *("<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<query>"),
    *("</query>", "<tool_call>", "</tool_call>", "<a>", "</a>", "<\\/search>", "<\\search>"),
    *("```python\n", "```\n", "`", "{", "}", "[", "]", '{"name":"', '"arguments":{', '"a":', '"'),
    *("\\", ",", ":", "1", "...", "{...}", "and", " tags ", "\n", " ", "\t", "x", "é", "上"),
    *("\\boxed{", "\\boxed ", "####", "answer is", "final answer", "**", "$", "[1,", "\u0301"),
    *("\u0316", "\u0f73", "\ud83d", "0", ".", "(", ")", "-", "\r\n", "</", "<"),
)


def _tools() -> tuple[Tool, ...]:
    def search(query: str, top_k: int = 3) -> str:
        """Search."""
        return query

    def python(code: str) -> str:
        """Run code."""
        return code

    return make_tool(search), make_tool(python)


TOOLS = _tools()
READERS: Mapping[str, Callable[[str], object]] = {
    **{name: lambda text, one=one: one.parse(text, TOOLS) for name, one in PROTOCOLS.items()},
    "boxes": extract_answer,
    "code": code_of,
    "citations": scoring.split_citations,
    "answers": scoring.normalize,
    "query": retriever.query_words,
    "reasoning": spoken,
}
LINEAR = {"reader": "linear", "begin": "", "unit": "x", "end": ""}
"""What grows with the length by construction: how much it grows is the machine's doing."""
TIMED = {**READERS, "linear": lambda text: [character for character in text if character != "y"]}


def build(case: Mapping[str, str], length: int) -> str:
    """Return the text of a case, of about `length` characters."""
    left = length - len(case["begin"]) - len(case["end"])
    return case["begin"] + case["unit"] * max(left // len(case["unit"]), 1) + case["end"]


def seconds(case: Mapping[str, str], length: int, repeats: int = 2) -> float:
    """Return the least processor time of some readings."""
    text, read = build(case, length), TIMED[case["reader"]]
    taken: list[float] = []
    was_on = gc.isenabled()
    gc.disable()  # its passes depend on what else is alive
    try:
        for _ in range(repeats):
            began = time.process_time()
            read(text)
            taken.append(time.process_time() - began)
    finally:
        if was_on:
            gc.enable()
    return min(taken)


def draw(rng: random.Random) -> dict[str, str]:
    """Return a random case."""

    def some(most: int) -> str:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(most + 1)))

    unit = some(3) or rng.choice(PIECES)
    return {
        "reader": rng.choice(sorted(READERS)),
        "begin": some(3),
        "unit": unit,
        "end": some(2),
    }


def search_for(limit_s: float, seed: int) -> list[tuple[float, dict[str, str]]]:
    """Return the cases found, those that grow most first."""
    rng, until = random.Random(seed), time.monotonic() + limit_s
    found: list[tuple[float, dict[str, str]]] = []
    while time.monotonic() < until:
        case = draw(rng)
        # What takes no time need not grow slowly.
        growth = seconds(case, LONG) / max(seconds(case, SHORT), 0.001)
        found.append((growth, case))
        found = sorted(found, key=lambda one: -one[0])[:KEPT]
    return found


def main() -> None:
    """Search, print the worst, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = search_for(options.seconds, options.seed)
    for growth, case in found[:10]:
        print(f"x{growth:.1f} for x{LONG // SHORT}: {case}")
    FILE.write_text(json.dumps([case for _, case in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
