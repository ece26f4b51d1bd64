"""`check_env` passes a sound environment and names the fault that is planted in each other one."""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agentgym.checks.env import check_env
from agentgym.checks.report import ContractError, Findings, Verdict, require
from agentgym.env.contract import Action, Reply, TextEnv
from agentgym.env.players import exact_bounds
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import MissingExtraError, RegistryError
from agentgym.records import Task
from agentgym.records.limits import Limits
from agentgym.tool_formats.tools import tool


class Vault(ToolEnv):
    """A code of four digits lies in a drawer; the tool opens it when told the right word."""

    limits = Limits(max_turns=4)

    def sample_task(self, rng: random.Random) -> Task:
        code, word = str(rng.randrange(1000, 10_000)), f"w{rng.randrange(10_000)}"
        return Task(id=word, env_id=self.env_id, prompt=f"The word is {word}.", answers=(code,))

    def start(self, task: Task, rng: random.Random) -> str:
        self.turns = 0
        return task.prompt

    @tool
    def open(self, word: str) -> str:
        """Open the drawer."""
        return self.gold if self.task and word == self.task.id else "closed"

    def grade(self, answer: str) -> float | Reply:
        return float(answer == self.gold)

    def expert(self) -> str:
        if self.last_observation == self.gold:
            return self.protocol.format_answer(self.gold)
        assert self.task is not None
        return self.protocol.format_call("open", {"word": self.task.id})

    @property
    def gold(self) -> str:
        assert self.task is not None
        return self.task.answers[0]


class Leaky(Vault):
    def start(self, task: Task, rng: random.Random) -> str:
        return f"{task.prompt} (for debugging: {self.gold})"


class LeakyTool(Vault):
    def on_text(self, text: str) -> str:
        return f"That was neither a call nor {self.gold}."


class Generous(Vault):
    def grade(self, answer: str) -> float:
        # Right if the gold answer is anywhere in it, or if it is empty.
        return float(self.gold in answer or not answer)


class Patient(Vault):
    """Pays for waiting."""

    reward_weights = {"alive": 1.0}  # noqa: RUF012 - as an author writes it

    def on_text(self, text: str) -> Reply:
        return Reply(observation="go on", rewards={"alive": 1.0})


class LateOutcome(Vault):
    """Says that the task is solved when the limit comes."""

    def outcome(self) -> float:
        return 1.0


class Parrot(Vault):
    def on_text(self, text: str) -> str:
        return f"You said: {text}"

    def grade(self, answer: str) -> Reply:
        return Reply(observation=f"{answer} is graded", outcome=float(answer == self.gold))


class GlobalChance(Vault):
    def start(self, task: Task, rng: random.Random) -> str:
        return f"{task.prompt} {random.random()}"


class Remembering(Vault):
    """A counter survives reset (J1)."""

    seen = 0

    def start(self, task: Task, rng: random.Random) -> str:
        self.seen += 1
        return f"{task.prompt} Episode {self.seen}."


class Shared(Vault):
    """A mutable class attribute is shared by all instances."""

    drawer: dict[str, int] = {}  # noqa: RUF012 - the fault

    def start(self, task: Task, rng: random.Random) -> str:
        self.drawer["turn"] = 0
        return task.prompt

    @tool
    def open(self, word: str) -> str:
        """Open the drawer."""
        self.drawer["turn"] += 1
        return self.gold if self.drawer["turn"] == 1 else "closed"


class CloseOnce(Vault):
    def close(self) -> None:
        if not self._is_open:
            raise RuntimeError("closed already")
        self._is_open = False

    _is_open = True


class OneTask(Vault):
    def sample_task(self, rng: random.Random) -> Task:
        return Task(id="only", env_id=self.env_id, prompt="The word is only.", answers=("1234",))


class Unsolvable(Vault):
    limits = Limits(max_turns=1)


class Sloppy(Vault):
    def expert(self) -> str:
        return "I would open the drawer."


class NoSeed(Vault):
    """The task after an unseeded reset depends on how long the episode was (J5)."""

    _clock = itertools.count()

    def step(self, action: str) -> Any:
        self._unseeded_resets += 1
        return super().step(action)


class ExecutesCutOff(Vault):
    def cut_off(self, action: Action) -> Reply | None:
        return None


class Modest(Vault):
    null_score = 0.9


class Reasoned(Vault):
    null_score = 0.9
    null_score_reason = "two answers only"


class Cheating(Vault):
    def extra_probes(self) -> Mapping[str, Callable[[Any, str, random.Random], str]]:
        return {"look inside": lambda env, observation, rng: env.protocol.format_answer(env.gold)}


class NotText(Vault):
    def start(self, task: Task, rng: random.Random) -> Any:
        return 7


class NoDocstring(Vault):
    @tool
    def shut(self) -> str:
        return "shut"


FAULTS: list[tuple[type[TextEnv], set[str]]] = [
    (Leaky, {"answers stay hidden"}),
    (LeakyTool, {"answers stay hidden"}),
    (Generous, {"probe: format only"}),
    (Patient, {"probe: silent", "probe: echo", "probe: time-out farming"}),
    (LateOutcome, {"probe: time-out farming"}),
    (Parrot, {"probe: oversize"}),
    (GlobalChance, {"seeds", "determinism", "unseeded resets"}),
    (Remembering, {"determinism"}),
    (Shared, {"isolation"}),
    (CloseOnce, {"close"}),
    (OneTask, {"seeds"}),
    (Unsolvable, {"expert"}),
    (Sloppy, {"expert"}),
    (NoSeed, {"unseeded resets"}),
    (ExecutesCutOff, {"cut-off turns"}),
    (Modest, {"null score"}),
    (Reasoned, {"null score"}),
    (Cheating, {"probe: extra look inside"}),
    (NotText, {"plays"}),
    (NoDocstring, {"declarations"}),
]


def test_sound_environment_passes() -> None:
    report = check_env(Vault)
    assert report.is_ok, str(report)
    assert report.scores["expert"] == 1.0
    assert report.scores["random"] == 0.0
    assert report.raise_if_failed() is report
    names = [finding.name for finding in report.findings]
    assert len(set(names)) == len(names)
    assert {"probe: silent", "probe: echo", "probe: format only", "probe: same call"} <= set(names)
    assert {"probe: oversize", "probe: time-out farming", "probe: random"} <= set(names)


@pytest.mark.parametrize(("env", "names"), FAULTS, ids=lambda v: getattr(v, "__name__", ""))
def test_planted_fault_is_named(env: type[TextEnv], names: set[str]) -> None:
    report = check_env(env)
    failed = {finding.name for finding in report.failures}
    assert names <= failed, str(report)
    with pytest.raises(ContractError, match=env.__name__):
        report.raise_if_failed()


def test_findings_say_what_was_seen() -> None:
    report = check_env(Generous)
    finding = next(f for f in report.failures if f.name == "probe: format only")
    # 24 of 24: the lower 95 % bound is 0.025^(1/24) = 0.858.
    assert finding.message == "scores 1.000 (at least 0.858) without trying; 'null_score' is 0.0"


def test_errors_can_be_raised_at_once() -> None:
    with pytest.raises(ContractError, match="answers stay hidden"):
        check_env(Leaky, raise_errors=True)


def test_answer_that_must_be_shown_is_skipped_with_its_reason() -> None:
    class Choice(Leaky):
        answer_shown_reason = "a choice of two"

    found = {f.name: f for f in check_env(Choice).findings}
    assert found["answers stay hidden"].verdict is Verdict.SKIPPED
    assert found["answers stay hidden"].message == "a choice of two"


def test_given_tasks_are_played() -> None:
    class Named(Vault):
        def sample_task(self, rng: random.Random) -> Task:
            # Gymnasium's own checker resets without a task.
            return Task(id="w1", env_id=self.env_id, prompt=f"{rng.random()}", answers=("1",))

    tasks = [
        Task(id=f"v{n}", env_id="Named", prompt=f"{n}", answers=(str(5000 + n),)) for n in range(12)
    ]
    report = check_env(Named, tasks=tasks)
    assert report.scores["expert"] == 1.0


def test_environment_without_expert_skips_it() -> None:
    class Quiz(TextEnv):
        def start(self, task: Task, rng: random.Random) -> str:
            self.code = rng.randrange(10**6)
            return "Guess."

        def respond(self, action: Action) -> Reply:
            return self.finish(outcome=float(action == str(self.code)))

    report = check_env(Quiz)
    assert report.is_ok, str(report)
    assert {f.name for f in report.findings if f.verdict is Verdict.SKIPPED} == {
        "expert",
        "answers stay hidden",
    }


def test_unknown_id_is_the_callers_mistake() -> None:
    with pytest.raises(RegistryError, match="unknown environment"):
        check_env("no/such-v0")


def test_findings_turn_exceptions_into_verdicts() -> None:
    findings = Findings()
    with findings.check("fine"):
        pass
    with findings.check("broken"):
        require(False, "it is broken")
    with findings.check("raises"):
        raise KeyError("k")
    with findings.check("extra"):
        raise MissingExtraError("this", extra="web")
    with pytest.raises(KeyboardInterrupt), findings.check("interrupted"):
        raise KeyboardInterrupt
    report = findings.report("subject")
    assert [(f.name, str(f.verdict), f.message) for f in report.findings] == [
        ("fine", "passed", ""),
        ("broken", "failed", "it is broken"),
        ("raises", "failed", "KeyError: 'k'"),
        ("extra", "skipped", "this needs an optional package: pip install 'agentgym-rl-kit[web]'"),
    ]
    assert [f.is_ok for f in report.findings] == [True, False, False, True]


# By hand. 0 of 24: (1 - p)^24 = 0.025, p = 1 - 0.025^(1/24) = 1 - exp(-3.688879 / 24) = 0.142474.
# 24 of 24: p^24 = 0.025, p = 0.857526. 1 of 3: low 1 - 0.975^(1/3) = 0.008404; high from
# P(0 or 1 of 3) = (1-p)^3 + 3p(1-p)^2 = 0.025 at p = 0.905701:
# 0.094299^3 + 3 * 0.905701 * 0.094299^2 = 0.000839 + 0.024161 = 0.025.
@pytest.mark.parametrize(
    ("total", "count", "low", "high"),
    [
        (0.0, 24, 0.0, 0.142474),
        (24.0, 24, 0.857526, 1.0),
        (1.0, 3, 0.008404, 0.905701),
        (0.0, 0, 0.0, 1.0),
    ],
)
def test_exact_bounds(total: float, count: int, low: float, high: float) -> None:
    assert exact_bounds(total, count) == pytest.approx((low, high), abs=1e-5)


def test_exact_bounds_round_partial_outcomes_outwards() -> None:
    low, high = exact_bounds(1.5, 4)
    assert (low, high) == (exact_bounds(1.0, 4)[0], exact_bounds(2.0, 4)[1])
    assert exact_bounds(sum([1 / 3] * 3), 4) == exact_bounds(1.0, 4)
