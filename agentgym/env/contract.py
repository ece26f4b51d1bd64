"""The environment contract: `Action`, `Reply`, `UnicodeText` and `TextEnv`.

`TextEnv` is a `gymnasium.Env[str, str]` whose author writes two functions, `start` and `respond`.
Environments with tools derive from `agentgym.env.tool_env.ToolEnv`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from agentgym import seeding
from agentgym.concurrency.threads import run_blocking
from agentgym.env.author_code import (
    author_code,
    awaited,
    is_async,
    settled,
    text_of_start,
)
from agentgym.errors import EnvError
from agentgym.records import Attachment, ErrorKind, FinishReason, Task, ToolCall, ToolResult
from agentgym.records.limits import Limits
from agentgym.records.text import readable
from agentgym.tool_formats.base import ActionProtocol, ParsedAction
from agentgym.tool_formats.plain import PlainText
from agentgym.tool_formats.tag_scanner import spoken
from agentgym.tool_formats.tools import Tool

TRUNCATED_NOTICE = "Your reply was cut off at the length limit. Nothing in it was executed."


class UnicodeText(spaces.Space[str]):
    """The space of all strings. Gymnasium's default `Text` rejects ordinary prose."""

    _SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789.,<>/"
    _SAMPLE_LENGTH = 32

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string; masks do not apply to text."""
        letters = self.np_random.integers(len(self._SAMPLE_ALPHABET), size=self._SAMPLE_LENGTH)
        return "".join(self._SAMPLE_ALPHABET[int(letter)] for letter in letters)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "UnicodeText()"


class Action(str):
    """What the agent wrote, with why it stopped and what the environment's protocol found in it."""

    finish_reason: FinishReason
    parsed: ParsedAction
    is_parsed: bool

    def __new__(
        cls,
        text: str,
        *,
        finish_reason: FinishReason = FinishReason.STOP,
        parsed: ParsedAction | None = None,
    ) -> Action:
        """Return `text` as an action; without `parsed`, the environment reads it itself."""
        action = super().__new__(cls, text)
        action.finish_reason = FinishReason(finish_reason)
        action.parsed = parsed if parsed is not None else ParsedAction()
        action.is_parsed = parsed is not None
        return action

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls to execute, in the order written."""
        return self.parsed.calls

    @property
    def answer(self) -> str | None:
        """The final answer; None if there is none."""
        return self.parsed.answer

    @property
    def spoken(self) -> str:
        """What was written beside the reasoning: graders and games read this, never `str(self)`."""
        return spoken(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment's `respond` returns where a plain string is not enough.

    Example:
        Reply("The drawer is open.", rewards={"opened": 1.0})
    """

    observation: str = ""
    """What the agent reads next."""
    _: KW_ONLY
    outcome: float | None = None
    """How far the task is solved, in [0, 1]; a number ends the episode, None goes on."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of this turn's reward."""
    role: str = "user"
    """Role of the observation: `user` or `tool`."""
    tool_results: tuple[ToolResult, ...] = ()
    """Results of the calls, in order."""
    error_kind: ErrorKind | None = None
    """Kind of the agent's mistake in this turn; None if none."""
    attachments: tuple[Attachment, ...] = ()
    """Files that come with the observation."""
    is_truncated: bool = False
    """True if a limit of the environment's own ends the episode here."""

    def __post_init__(self) -> None:
        if self.outcome is not None and not 0 <= self.outcome <= 1:
            raise EnvError(f"an outcome must be in [0, 1] (got {self.outcome!r})")


class TextEnv(gymnasium.Env[str, str]):
    """An environment whose observations and actions are text.

    A subclass defines `start` and `respond`, either of which may be async, and `sample_task` if it
    has tasks. `reward` of `step`
    is the weighted sum of the named parts (`reward_weights`, 0 for a name that is not listed) plus
    the outcome on the last step; the trainer reads the names and the outcome only.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own type
    system_prompt: str = ""
    """What the agent is told before the first observation."""
    protocol: ActionProtocol = PlainText()
    """How actions are written."""
    limits: Limits = Limits()
    """Bounds that the environment's author recommends; a run may tighten them."""
    null_score: float = 0.0
    """Most that an agent reaches which does not try: silent, constant, random."""
    null_score_reason: str = ""
    """Why `null_score` is above 0.2, from the number of possible answers; else empty."""
    expert_score: float = 0.95
    """Least mean outcome of the scripted expert, if there is one."""
    answers_are_final: bool = True
    """True if a gold answer given at once solves its task; False where only acting does."""
    answer_shown_reason: str = ""
    """Why a gold answer may be read before it is earned, such as a choice of two; else empty."""
    reset_needs: str = ""
    """What `reset` needs beside Python, such as a sandbox or a browser; empty if nothing. First
    observations are then not looked at by checks that should be quick."""
    reward_weights: ClassVar[Mapping[str, float]] = {}
    """Weight of each named part in `step`'s reward."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.render_mode = render_mode
        self.task: Task | None = None
        self.rng = random.Random(0)
        self.last_observation = ""
        self._is_running = False
        self._unseeded_resets = 0

    # -- what an author writes -------------------------------------------------------------

    def start(self, task: Task, rng: random.Random) -> str | Awaitable[str]:
        """Set up the episode of `task` and return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must define start(self, task, rng)")

    def respond(self, action: Action) -> str | Reply | Awaitable[str | Reply]:
        """Return what the agent reads next: a string, or a `Reply` which may end the episode."""
        raise NotImplementedError(f"{type(self).__name__} must define respond(self, action)")

    def sample_task(self, rng: random.Random) -> Task:
        """Return a task drawn with `rng`; by default a task that holds nothing but a seed."""
        seed = rng.randrange(2**31)
        return Task(id=f"seed-{seed}", env_id=self.env_id, payload={"seed": seed})

    def outcome(self) -> float:
        """Return how far the task is solved now, in [0, 1], where a limit ends the episode."""
        return 0.0

    def expert(self) -> str:
        """Return the scripted expert's next action in the present state.

        Raises:
            NotImplementedError: If the environment ships no expert.
        """
        raise NotImplementedError(f"{self.env_id} ships no scripted expert")

    def extra_probes(self) -> Mapping[str, Callable[[Any, str, random.Random], str]]:
        """Return more ways to cheat that `check_env` tries: name -> (environment, last observation,
        generator) -> action. None of them may score more than `null_score`.
        """
        return {}

    # -- what the engine and Gymnasium call ------------------------------------------------

    @property
    def env_id(self) -> str:
        """Registered id; the class name if the environment was not made by the registry."""
        return self.spec.id if self.spec is not None else type(self).__name__

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools on offer."""
        return ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. The same task and seed give the same episode, whatever ran before.

        Args:
            seed: Seed of the episode; without one, episodes follow each other reproducibly from
                the last seed given.
            options: `{"task": Task}` poses that task; without it the environment draws one.

        Raises:
            EnvError: If `options` has other keys, or the task belongs to another environment.
        """
        task = self._begin(seed, options)
        with author_code(self.env_id):
            return self._begun(task, settled(self.start(task, self.rng)))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode without blocking the event loop; an async `start` is awaited in it."""
        if type(self).reset is not TextEnv.reset:
            return await run_blocking(self.reset, seed=seed, options=options)
        task = await run_blocking(self._begin, seed, options)
        with author_code(self.env_id):
            return self._begun(task, await awaited(self.start, task, self.rng))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer one action. See the module `agentgym.env.contract` for what `info` holds."""
        with author_code(self.env_id):
            return self.pack(self.reply_to(self.as_action(action)))

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer one action without blocking the event loop: `step` in a thread of the engine,
        unless `respond` is async.
        """
        if not is_async(self.respond):
            return await run_blocking(self.step, action)
        with author_code(self.env_id):
            parsed = self.as_action(action)
            reply = self.cut_off(parsed) or self._as_reply(await awaited(self.respond, parsed))
            return self.pack(reply)

    def as_action(self, action: str) -> Action:
        """Return `action` parsed by this environment's protocol, unless it is parsed already."""
        if not self._is_running:
            raise EnvError(f"{self.env_id}: step needs a running episode; call reset first")
        if isinstance(action, Action) and action.is_parsed:
            return action
        # Callers outside Python's types: None would be graded as the text "None".
        if not isinstance(cast("object", action), str):
            raise EnvError(f"{self.env_id}: an action is text, such as 'yes' (got {action!r})")
        text = str(action)
        reason = action.finish_reason if isinstance(action, Action) else FinishReason.STOP
        parsed = self.protocol.parse(text, self.tools, finish_reason=reason)
        return Action(text, finish_reason=reason, parsed=parsed)

    def reply_to(self, action: Action) -> Reply:
        """Return the answer to a parsed action; a cut-off action executes nothing."""
        return self.cut_off(action) or self._as_reply(settled(self.respond(action)))

    def cut_off(self, action: Action) -> Reply | None:
        """Return the answer to an action that a length bound cut off; None if it is whole."""
        if action.finish_reason is not FinishReason.LENGTH:
            return None
        return Reply(observation=TRUNCATED_NOTICE, error_kind=ErrorKind.TRUNCATED)

    def pack(self, reply: Reply) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return a reply as Gymnasium's five values."""
        observation = self.last_observation = readable(reply.observation)
        is_terminated = reply.outcome is not None and not reply.is_truncated
        self._is_running = not (is_terminated or reply.is_truncated)
        reward = sum(
            self.reward_weights.get(name, 0.0) * part for name, part in reply.rewards.items()
        )
        info: dict[str, Any] = {
            "role": reply.role,
            "rewards": dict(reply.rewards),
            "tool_results": reply.tool_results,
            "error_kind": reply.error_kind,
        }
        if reply.attachments:
            info["attachments"] = reply.attachments
        if not self._is_running:
            info["outcome"] = reply.outcome if reply.outcome is not None else self.outcome()
            reward += info["outcome"]
        return observation, float(reward), is_terminated, reply.is_truncated, info

    def render(self) -> str:
        """Return the last observation."""
        return self.last_observation

    def close(self) -> None:
        """Free what the instance holds. May be called more than once."""
        self._is_running = False

    @staticmethod
    def finish(observation: str = "", *, outcome: float, **rewards: float) -> Reply:
        """Return a reply that ends the episode with `outcome` in [0, 1]."""
        return Reply(observation=observation, outcome=outcome, rewards=rewards)

    def own_task(self, rng: random.Random) -> Task:
        """Return a task drawn by `sample_task`, as this environment's own.

        A subclass that is registered under an id of its own may draw its base's tasks: they are
        posed by the subclass then, and its records say so.

        Raises:
            EnvError: If `sample_task` returned no task.
        """
        with author_code(self.env_id):
            task = self.sample_task(rng)
        if not isinstance(cast("object", task), Task):
            raise EnvError(f"{self.env_id}: sample_task must return a Task (got {task!r})")
        return task if self.spec is None else replace(task, env_id=self.spec.id)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Task:
        """Return the task of a new episode, whose generator is seeded."""
        super().reset(seed=seed)
        episode_seed = self._episode_seed(seed)
        task = self._requested_task(options)
        self.task = task or self.own_task(seeding.rng(episode_seed, "task"))
        self.rng = seeding.rng(episode_seed, "episode")
        self._is_running = True
        return self.task

    def _begun(self, task: Task, observation: Any) -> tuple[str, dict[str, Any]]:
        self.last_observation = text_of_start(self.env_id, observation)
        return self.last_observation, {"task": task, "role": "user"}

    def _as_reply(self, reply: Any) -> Reply:
        if isinstance(reply, str):
            return Reply(reply)
        if not isinstance(reply, Reply):
            raise EnvError(f"{self.env_id}: respond must return text or a Reply (got {reply!r})")
        return reply

    def _episode_seed(self, seed: int | None) -> int:
        if seed is not None:
            self._base_seed, self._unseeded_resets = seed, 0
            return seed
        if not hasattr(self, "_base_seed"):
            self._base_seed = int(self.np_random.integers(2**31))
        self._unseeded_resets += 1
        return seeding.derive(self._base_seed, self._unseeded_resets)

    def _requested_task(self, options: dict[str, Any] | None) -> Task | None:
        unknown = sorted(set(options or {}) - {"task"})
        if unknown:
            raise EnvError(f"reset takes the option 'task' only (got {unknown!r})")
        task = (options or {}).get("task")
        if task is not None and not isinstance(task, Task):
            raise EnvError(f"the option 'task' must be a Task (got {type(task).__name__})")
        if task is not None and self.spec is not None and task.env_id != self.spec.id:
            raise EnvError(f"{self.spec.id} cannot pose a task of {task.env_id!r}")
        return task
