"""Find, for each HumanEval solution, the first mutant that fails the package's own check.

    python tests/tools/make_humaneval_mutants.py > tests/data/humaneval_mutants.json

The numbers name mutants in the order of `agentgym.envs.code.mutations.mutants`. The check is run as
the package runs it, but in a box: `python3 -c PROGRAM`, at most 3 s.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import json

from agentgym.envs.code import humaneval
from agentgym.envs.code.mutations import mutants
from agentgym.sandbox.base import Sandbox
from agentgym.sandbox.registry import best_available, make_sandbox

PACKAGE_TIMEOUT_S = 3.0


async def is_failing(box: Sandbox, name: str, code: str) -> bool:
    row = humaneval.problem(name)
    program = f"{code}\n{row['test']}\ncheck({row['entry_point']})"
    result = await box.exec(["python3", "-c", program], timeout_s=PACKAGE_TIMEOUT_S)
    return not result.is_ok


def helpers(code: str, function: str) -> list[str]:
    """Everything but the function under test: a mutant of that is not a mutant of the solution."""
    nodes = ast.parse(code).body
    return [ast.unparse(n) for n in nodes if getattr(n, "name", "") != function]


async def first_failing(box: Sandbox, name: str) -> int:
    solution, function = humaneval.solution(name), humaneval.problem(name)["entry_point"]
    for number, code in enumerate(mutants(solution)):
        is_other = helpers(code, function) != helpers(solution, function)
        if not is_other and await is_failing(box, name, code):
            return number
    raise LookupError(f"no mutant of {name} fails")


async def main() -> None:
    async with make_sandbox(await best_available()) as box:
        found = {name: await first_failing(box, name) for name in humaneval.problems()}
        for name in itertools.islice(found, 5):
            assert not await is_failing(box, name, humaneval.solution(name))
    print(json.dumps(found, indent=0))


asyncio.run(main())
