"""One episode from task to trajectory. Failures become data here and nowhere else.

The agent's mistakes are observations. What fails for another reason ends the episode with a
`Failure`; the engine decides whether to try again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from agentgym.env.author_code import described
from agentgym.env.contract import Action
from agentgym.errors import InfrastructureError
from agentgym.policies.base import Policy
from agentgym.policies.completions import checked
from agentgym.records import Completion, ErrorKind, Failure, StopReason, Trajectory
from agentgym.rollouts.env_worker import EnvDriver
from agentgym.rollouts.episode_state import Episode, EpisodeSpec

if TYPE_CHECKING:
    from agentgym.policies.expert import EnvAware

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """How long one call of the policy or of the environment may take."""

    seconds: float | None
    """None for no bound."""
    text: str
    """Which bound it is, for the message."""


class _FailedError(Exception):
    """Carries a typed failure from where it happened to the end of the episode."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def run_episode(
    driver: EnvDriver, policy: Policy, spec: EpisodeSpec, episode: Episode | None = None
) -> Trajectory:
    """Run one episode and return its record, whatever happens short of cancellation.

    Args:
        driver: The environment instance; it is reset, not closed.
        policy: Who acts. `begin_episode` and `end_episode` are the caller's.
        spec: What to run.
        episode: Where to keep the books, for a caller that wants to look at a live episode.

    Raises:
        asyncio.CancelledError: If the caller was cancelled; the books then say how far it got.
    """
    episode = episode if episode is not None else Episode(spec, policy)
    try:
        await _start(driver, episode)
        return await _play(driver, policy, episode)
    except _FailedError as failed:
        return episode.finish(StopReason.FAILURE, failure=failed.failure)
    except Exception as error:
        # What an environment or its protocol gave is none of what a record may hold.
        return episode.finish(StopReason.FAILURE, failure=_failure(error, where="env"))


async def driver_or_failure(acquired: Awaitable[EnvDriver], env_id: str) -> EnvDriver | Failure:
    """Return the environment instance, or why there is none, as data."""
    try:
        return await acquired
    except Exception as error:
        failure = _failure(error, where="env")
        return replace(failure, message=f"{env_id} could not be made: {failure.message}")


async def close_driver(driver: EnvDriver) -> None:
    """Close an environment instance; one that fails to close spoils no finished episode."""
    try:
        await driver.aclose()
    except Exception as error:
        logger.warning("%s could not be closed: %s", type(driver.unwrapped).__name__, error)


async def _start(driver: EnvDriver, episode: Episode) -> None:
    episode.enter("reset")
    spec = episode.spec
    bounds = (spec.limits.step_timeout_s, spec.limits.max_seconds)
    seconds = min((bound for bound in bounds if bound is not None), default=None)
    try:
        observation, _ = await driver.reset(spec.task, spec.seed, seconds)
    except Exception as error:
        raise _FailedError(_failure(error, where="env")) from error
    episode.open(driver.unwrapped, observation)


async def _play(driver: EnvDriver, policy: Policy, episode: Episode) -> Trajectory:
    limits = episode.limits
    deadline = None if limits.max_seconds is None else time.monotonic() + limits.max_seconds
    while (stop := episode.limit_reached()) is None:
        if deadline is not None and time.monotonic() >= deadline:
            stop = StopReason.MAX_SECONDS
            break
        began = time.perf_counter()
        completion = await _generate(driver, policy, episode, deadline)
        generated = time.perf_counter()
        action = _parse(driver, episode, completion)
        result = await _step(driver, episode, action, deadline)
        timings = {"policy_s": generated - began, "env_s": time.perf_counter() - generated}
        episode.add_turn(completion, action, result, timings)
        if result["terminated"] or result["truncated"]:
            terminated = bool(result["terminated"])
            stop = StopReason.TERMINATED if terminated else StopReason.ENV_TRUNCATED
            outcome = await _outcome(driver, episode, result["info"])
            return episode.finish(stop, terminated=terminated, outcome=outcome)
    return episode.finish(stop, outcome=await _outcome(driver, episode, {}))


async def _generate(
    driver: EnvDriver, policy: Policy, episode: Episode, deadline: float | None
) -> Completion:
    """Return the policy's answer, held against the request."""
    episode.enter("generate")
    request = episode.request()
    wait = _wait(episode.limits.generate_timeout_s, episode, deadline)
    try:
        async with _in_time(wait):
            # Not isinstance: a protocol's check costs more than the rest of a turn.
            if hasattr(policy, "act"):
                expert = cast("EnvAware", policy)
                act = driver.call(lambda: expert.act(driver.unwrapped, request), wait.seconds)
                completion = await act
            else:
                completion = await policy.generate(request)
        return checked(
            completion,
            request,
            policy_id=policy.id,
            renderer=policy.renderer,
            max_context_tokens=policy.max_context_tokens,
        )
    except Exception as error:
        raise _FailedError(_failure(error, where="policy", wait=wait)) from error


def _parse(driver: EnvDriver, episode: Episode, completion: Completion) -> Action:
    """Return the completion as an action, parsed by the environment's own protocol."""
    env: Any = driver.unwrapped
    protocol = getattr(env, "protocol", None)
    if protocol is None:
        return Action(completion.text, finish_reason=completion.finish_reason)
    parsed = protocol.parse(completion.text, env.tools, finish_reason=completion.finish_reason)
    return episode.within_tool_budget(
        Action(completion.text, finish_reason=completion.finish_reason, parsed=parsed)
    )


async def _step(
    driver: EnvDriver, episode: Episode, action: Action, deadline: float | None
) -> dict[str, Any]:
    episode.enter("env")
    if action.tool_calls:
        episode.last_tool = action.tool_calls[-1].name
    wait = _wait(episode.limits.step_timeout_s, episode, deadline)
    try:
        async with _in_time(wait):
            step = await driver.step(action, wait.seconds)
    except Exception as error:
        raise _FailedError(_failure(error, where="env", wait=wait)) from error
    observation, reward, terminated, truncated, info = step
    return {
        "observation": observation,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "info": info,
    }


async def _outcome(driver: EnvDriver, episode: Episode, info: dict[str, Any]) -> float | None:
    """Return the environment's word on how far the task is solved, None if it has none."""
    if "outcome" in info:
        return float(info["outcome"])
    ask = getattr(driver.unwrapped, "outcome", None)
    if ask is None:
        return None
    episode.enter("outcome")
    try:
        return float(await driver.call(ask, episode.limits.step_timeout_s))
    except Exception as error:
        raise _FailedError(_failure(error, where="env")) from error


def _wait(bound: float | None, episode: Episode, deadline: float | None) -> _Wait:
    """Return how long a call may take: its own bound, or what is left of the episode's."""
    left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
    if left is None or (bound is not None and bound <= left):
        return _Wait(seconds=bound, text="" if bound is None else f" after {bound:g} s")
    whole = episode.limits.max_seconds
    return _Wait(seconds=left, text=f": the {whole:g} s of its episode were over")


@asynccontextmanager
async def _in_time(wait: _Wait) -> AsyncGenerator[None]:
    """Bound a call. One that held the loop, or would not be cancelled, is late and counts as none.

    Raises:
        TimeoutError: If it took longer.
    """
    began = time.monotonic()
    async with asyncio.timeout(wait.seconds):
        yield
    if wait.seconds is not None and time.monotonic() - began > wait.seconds:
        raise TimeoutError


def _failure(error: Exception, *, where: str, wait: _Wait | None = None) -> Failure:
    """Return what went wrong as data. Only infrastructure is worth another try."""
    if isinstance(error, TimeoutError):
        after = wait.text if wait is not None else ""
        return Failure(
            kind=ErrorKind.TIMEOUT,
            where=where,
            message=f"the {where} did not answer in time{after}",
            exception=type(error).__name__,
            is_retryable=True,
        )
    return Failure(
        kind=ErrorKind.INFRASTRUCTURE,
        where=where,
        message=described(error) if where == "env" else _one_line(error),
        exception=type(error).__name__,
        is_retryable=isinstance(error, InfrastructureError),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


__all__ = ["close_driver", "driver_or_failure", "run_episode"]
