"""`check_policy`: does a policy keep the contract of `agentgym.policies.base.Policy`?

In order: the report, the runner, the checks. Checks of ids apply to policies with a renderer. The
policy is closed at the end.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agentgym.errors import AgentGymError, PolicyError
from agentgym.policies.base import GenerateRequest, Policy
from agentgym.policies.completions import checked
from agentgym.records import Completion, FinishReason, Sampling, Source, TokenTrace
from agentgym.records.messages import Message
from agentgym.renderer.base import RenderedTurn, Renderer

_EPISODES = 8
_TIMEOUT_S = 120.0
"""A policy that does not answer at all must fail its check, not hang it."""
_SEED = 20_011


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The outcome of one check."""

    name: str
    """What was checked, in words."""
    problem: str | None = None
    """What was wrong; None if nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """The outcomes of all checks of one policy."""

    outcomes: tuple[PolicyOutcome, ...]

    @property
    def problems(self) -> tuple[PolicyOutcome, ...]:
        """Checks that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.problem is not None)

    def __str__(self) -> str:
        lines = [f"{len(self.outcomes)} checks, {len(self.problems)} failed"]
        lines += [f"  {outcome.name}: {outcome.problem}" for outcome in self.problems]
        return "\n".join(lines)


class PolicyCheckError(AssertionError):
    """What a policy did against its contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProbe:
    """What the checks ask of a policy.

    Example:
        PolicyProbe(opening=(Message(role="user", content="37*48"),), max_new_tokens=16)
    """

    opening: tuple[Message, ...] = (Message(role="user", content="hello"),)
    """The first messages of every episode."""
    observation: Message = field(default_factory=lambda: Message(role="user", content="again"))
    """What the world answers to the first turn."""
    max_new_tokens: int = 16
    """Bound of every call."""

    def request(self, episode_id: str, policy: Policy, *, seed: int = _SEED) -> GenerateRequest:
        """Return the first call of an episode."""
        renderer = policy.renderer
        ids = renderer.first_prompt(self.opening).ids if renderer is not None else None
        return GenerateRequest(
            episode_id=episode_id,
            turn=0,
            messages=self.opening,
            prompt_ids=ids,
            sampling=Sampling(max_new_tokens=self.max_new_tokens, seed=seed),
        )

    def next_request(
        self, policy: Policy, first: GenerateRequest, answer: Completion
    ) -> GenerateRequest:
        """Return the second call of an episode."""
        messages = (
            *self.opening,
            Message(role="assistant", content=answer.text),
            self.observation,
        )
        ids = None
        if (
            policy.renderer is not None
            and first.prompt_ids is not None
            and answer.tokens is not None
        ):
            turn = RenderedTurn(
                prompt_ids=first.prompt_ids,
                sampled_ids=answer.tokens.ids,
                completion=answer.text,
                observation=self.observation,
            )
            prompt = policy.renderer.next_prompt(self.opening, [turn])
            full = first.prompt_ids + answer.tokens.ids
            ids = full[: prompt.prefix_length] + prompt.ids
        return dataclasses.replace(first, turn=1, messages=messages, prompt_ids=ids)


async def check_policy(policy: Policy, probe: PolicyProbe | None = None) -> PolicyReport:
    """Run every check over one policy, then close it.

    Args:
        policy: What is checked; a script must have two turns or more for any episode.
        probe: What is asked of it.
    """
    asked = probe if probe is not None else PolicyProbe()
    outcomes: list[PolicyOutcome] = []
    for name, run in _CHECKS:
        problem = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await run(policy, asked)
        except TimeoutError:
            problem = f"no answer within {_TIMEOUT_S:g} s"
        except (PolicyCheckError, AgentGymError) as error:
            problem = f"{type(error).__name__}: {error}"[:500]
        outcomes.append(PolicyOutcome(name=name, problem=problem))
    return PolicyReport(outcomes=tuple(outcomes))


async def _has_surface(policy: Policy, probe: PolicyProbe) -> None:
    _is_a(policy, Policy, "an attribute or a method of Policy is missing")
    _is_a(policy.id, str, f"'id' must be a name (got {policy.id!r})")
    _expect(bool(policy.id), "'id' must not be empty")
    _expect(policy.version >= 0, f"'version' must be >= 0 (got {policy.version!r})")
    renderer = policy.renderer
    if renderer is not None:
        _is_a(renderer, Renderer, f"'renderer' must be a Renderer or None (got {renderer!r})")


async def _answers(policy: Policy, probe: PolicyProbe) -> None:
    answer = await _first(policy, probe, "check-answer")
    _is_a(answer, Completion, f"wanted a Completion (got {answer!r})")
    _hold_against(policy, probe.request("check-answer", policy), answer)
    _expect(
        answer.policy_id == policy.id,
        f"'policy_id' must be {policy.id!r} (got {answer.policy_id!r})",
    )
    _expect(
        answer.source is not Source.EXPERT, "only an expert's completion has the source 'expert'"
    )


async def _plays_two_turns(policy: Policy, probe: PolicyProbe) -> None:
    first = probe.request("check-turns", policy)
    await policy.begin_episode(first.episode_id)
    answer = await policy.generate(first)
    second = probe.next_request(policy, first, answer)
    reply = await policy.generate(second)
    await policy.end_episode(first.episode_id)
    _check_ids(policy, first, answer)
    _check_ids(policy, second, reply)


async def _keeps_episodes_apart(policy: Policy, probe: PolicyProbe) -> None:
    names = [f"check-many-{index}" for index in range(_EPISODES)]

    async def play(index: int) -> Completion:
        return await _first(policy, probe, names[index], seed=_SEED + index)

    together = await asyncio.gather(*(play(index) for index in range(_EPISODES)))
    for index, answer in enumerate(together):
        _check_ids(policy, probe.request(names[index], policy), answer)


async def _repeats_with_its_seed(policy: Policy, probe: PolicyProbe) -> None:
    if policy.renderer is None:
        return  # a server or a person promises nothing of the kind
    # One name at two times: a script may read the name.
    answers = [await _first(policy, probe, "check-seed") for _ in range(2)]
    ids = [answer.tokens.ids for answer in answers if answer.tokens is not None]
    _expect(len(set(ids)) == 1, f"one seed and prompt must give the same ids (got {ids!r})")


async def _stops_at_one_id(policy: Policy, probe: PolicyProbe) -> None:
    if policy.renderer is None:
        return
    short = dataclasses.replace(probe, max_new_tokens=1)
    answer = await _first(policy, short, "check-short")
    trace = _trace(answer)
    _expect(len(trace.ids) == 1, f"max_new_tokens=1 allows one id (got {len(trace.ids)})")
    wanted = FinishReason.STOP if trace.ids[0] in policy.renderer.end_ids else FinishReason.LENGTH
    _expect(answer.finish_reason is wanted, f"wanted {wanted!s} (got {answer.finish_reason!s})")


async def _refuses_a_prompt_without_ids(policy: Policy, probe: PolicyProbe) -> None:
    if policy.renderer is None:
        return
    request = dataclasses.replace(probe.request("check-text", policy), prompt_ids=None)
    try:
        await policy.generate(request)
    except PolicyError:
        return
    raise PolicyCheckError(
        "a policy with a renderer must raise PolicyError for a prompt without ids"
    )


async def _survives_cancellation(policy: Policy, probe: PolicyProbe) -> None:
    async def one(name: str) -> None:
        await _first(policy, probe, name)

    async with asyncio.TaskGroup() as tasks:
        cancelled = tasks.create_task(one("check-cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
    answer = await _first(policy, probe, "check-after-cancel")
    _check_ids(policy, probe.request("check-after-cancel", policy), answer)


async def _ends_and_closes_twice(policy: Policy, probe: PolicyProbe) -> None:
    await policy.end_episode("check-unknown")
    await policy.end_episode("check-unknown")
    await policy.aclose()
    await policy.aclose()
    await policy.end_episode("check-unknown")


_Check = Callable[[Policy, PolicyProbe], Awaitable[None]]
_CHECKS: Sequence[tuple[str, _Check]] = (
    ("has the attributes and methods of a policy", _has_surface),
    ("answers with a completion that names it", _answers),
    ("plays two turns, ids, log-probabilities and versions in step", _plays_two_turns),
    ("keeps episodes that run together apart", _keeps_episodes_apart),
    ("gives the same ids for the same seed and prompt", _repeats_with_its_seed),
    ("stops at the bound and says so", _stops_at_one_id),
    ("refuses a prompt without ids, if it works on ids", _refuses_a_prompt_without_ids),
    ("goes on after a cancelled call", _survives_cancellation),
    ("ends episodes and closes more than once", _ends_and_closes_twice),
)


async def _first(policy: Policy, probe: PolicyProbe, name: str, *, seed: int = _SEED) -> Completion:
    """Play the first turn of an episode of its own."""
    await policy.begin_episode(name)
    try:
        return await policy.generate(probe.request(name, policy, seed=seed))
    finally:
        await policy.end_episode(name)


def _check_ids(policy: Policy, request: GenerateRequest, answer: Completion) -> None:
    """Check that text, ids, log-probabilities, versions and finish reason fit one another."""
    renderer = policy.renderer
    if renderer is None:
        return
    _hold_against(policy, request, answer)
    trace = _trace(answer)
    text = renderer.decode(trace.ids)
    _expect(text == answer.text, f"the ids mean {text!r} (got the text {answer.text!r})")
    if trace.behavior_logprobs is None:
        raise PolicyCheckError("a policy with a renderer must give log-probabilities (got None)")
    newest = max((run.version for run in trace.versions), default=0)
    _expect(
        newest <= policy.version, f"ids from version {newest}, the policy is at {policy.version}"
    )
    has_end = bool(trace.ids) and trace.ids[-1] in renderer.end_ids
    is_stop = answer.finish_reason is FinishReason.STOP
    _expect(is_stop or not has_end, f"an end id means 'stop' (got {answer.finish_reason!s})")


def _hold_against(policy: Policy, request: GenerateRequest, answer: Completion) -> None:
    """Do what the rollout does with every answer; raises PolicyError for one that cannot be."""
    checked(
        answer,
        request,
        policy_id=policy.id,
        renderer=policy.renderer,
        max_context_tokens=policy.max_context_tokens,
    )


def _trace(answer: Completion) -> TokenTrace:
    if answer.tokens is None:
        raise PolicyCheckError("a policy with a renderer must give ids (got tokens=None)")
    return answer.tokens


def _is_a(value: object, kind: type, what: str) -> None:
    """Check a type that the annotation promises: whose annotation it is, is what is checked."""
    _expect(isinstance(value, kind), what)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise PolicyCheckError(what)


__all__ = ["PolicyOutcome", "PolicyProbe", "PolicyReport", "check_policy"]
