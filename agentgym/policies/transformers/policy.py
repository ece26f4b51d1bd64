"""`TransformersPolicy`: any causal model of transformers, in this process, as a `Policy`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from torch import Tensor, nn

from agentgym import seeding
from agentgym.concurrency.limiter import PolicyLoad
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest, require_prompt_ids, require_prompts
from agentgym.policies.transformers.batcher import Batcher, BatchLimits
from agentgym.policies.transformers.forward import ModelRunner
from agentgym.policies.transformers.jobs import Job, Outcome, StopScanner
from agentgym.policies.transformers.weights import load_tensors
from agentgym.policies.transformers.worker import Worker
from agentgym.records import Completion, TokenTrace
from agentgym.renderer.base import Renderer

_SCORED_TOKENS = 16_384
"""Ids, padding included, that one scoring forward takes."""


class TransformersPolicy:
    """Generates with a model in this process, all live episodes in one batch.

    Keys and values of an episode stay between its turns, so a turn costs the ids that are new. The
    model may be the learner's own module: then `update_weights(None, version)` is all that a new
    version needs. Generation and training must not overlap in that case (`pause`).

    Args:
        model: A causal model of transformers, or a peft model around one.
        renderer: The renderer of its tokenizer.
        policy_id: Name, for records.
        version: Learner updates behind the weights.
        max_rows: Episodes kept at once; further ones wait, and resting ones lose their keys.
        max_context_tokens: Prompt and completion together; at most what the model declares.
        prefill_tokens: Ids of prompts, padding included, in one forward.
        seed: Seed of the stream behind requests that bring no seed.
        deterministic: Batches form when every begun episode asks, and never change until all
            are answered, so results do not depend on who asked first. All episodes of such a
            batch must be begun before the first of them asks.

    Raises:
        PolicyError: If the model has layers without keys and values.
    """

    def __init__(
        self,
        model: nn.Module,
        renderer: Renderer,
        *,
        policy_id: str = "transformers",
        version: int = 0,
        max_rows: int = 1_024,
        max_context_tokens: int | None = None,
        prefill_tokens: int = 8_192,
        seed: int = 0,
        deterministic: bool = False,
    ) -> None:
        self.model = model
        self._renderer = renderer
        self._id = policy_id
        self._runner = ModelRunner(model)
        bounds = [b for b in (max_context_tokens, self._runner.context_tokens) if b is not None]
        self._max_context_tokens = min(bounds, default=None)
        batcher = Batcher(
            self._runner,
            end_ids=renderer.end_ids,
            stops=StopScanner(renderer.decode, vocabulary_size=self._runner.vocabulary_size),
            limits=BatchLimits(
                max_rows=max_rows,
                prefill_tokens=prefill_tokens,
                max_context_tokens=self._max_context_tokens,
                is_deterministic=deterministic,
            ),
        )
        self._batcher = batcher
        self._worker = Worker(batcher, version=version)
        self._stream = seeding.rng(seed, "policy")

    @property
    def id(self) -> str:
        """Name, for records."""
        return self._id

    @property
    def renderer(self) -> Renderer:
        """Turns conversations into ids."""
        return self._renderer

    @property
    def version(self) -> int:
        """Learner updates behind the weights that sample now."""
        return self._worker.version

    @property
    def max_context_tokens(self) -> int | None:
        """Ids that prompt and completion may have together; None if not known."""
        return self._max_context_tokens

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the completion of one prompt.

        Raises:
            PolicyError: If the request has no ids, its prompt fills the context, or the forward
                fails.
        """
        prompt = require_prompt_ids(
            request, policy_id=self._id, max_context_tokens=self._max_context_tokens
        )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()

        def deliver(outcome: Outcome | Exception) -> None:
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        def on_done(outcome: Outcome | Exception) -> None:
            if not loop.is_closed():  # else nobody is left to hear of it
                loop.call_soon_threadsafe(deliver, outcome)

        seed = request.sampling.seed
        job = Job(
            episode_id=request.episode_id,
            prompt=prompt,
            sampling=request.sampling,
            rng=random.Random(self._stream.getrandbits(63) if seed is None else seed),
            on_done=on_done,
        )
        self._worker.post(lambda: self._batcher.submit(job))
        try:
            outcome = await answer
        except asyncio.CancelledError:
            self._post_quietly(job)
            raise
        return self._completion(request, outcome)

    async def begin_episode(self, episode_id: str) -> None:
        """Announce an episode, before its first call."""
        self._worker.post(lambda: self._batcher.begin(episode_id))

    async def end_episode(self, episode_id: str) -> None:
        """Free whatever is kept for an episode. May be called for an unknown one."""
        try:
            self._worker.post(lambda: self._batcher.end(episode_id))
        except PolicyError:
            return  # closed: everything is free already

    async def aclose(self) -> None:
        """Free everything. May be called more than once."""
        await asyncio.to_thread(self._worker.close)

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[tuple[float, ...], ...]:
        """Return [pair][time] log-probabilities, at temperature 1, of target ids after prompt ids.

        Args:
            pairs: Prompt ids, at least one, and target ids.

        Raises:
            PolicyError: If a prompt is empty.
        """
        require_prompts(pairs)
        rows = [(*prompt, *target) for prompt, target in pairs]
        skip = [len(prompt) for prompt, _ in pairs]
        return await asyncio.wrap_future(self._worker.call(lambda: self._score(rows, skip)))

    async def load(self) -> PolicyLoad:
        """Return how many requests are sampled and how many wait to join them."""
        return PolicyLoad(running=self._batcher.running, waiting=self._batcher.waiting)

    def pause(self) -> None:
        """Stop sampling between two ids; requests that run are kept."""
        self._worker.pause()

    def resume(self) -> None:
        """Go on sampling."""
        self._worker.post(self._worker.resume)

    async def update_weights(
        self,
        weights: nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None,
        version: int,
    ) -> None:
        """Sample with new weights from the next id on; every kept key and value is dropped.

        Args:
            weights: A module to copy from, named tensors, or None where the learner changed the
                shared module itself. The policy's own module counts as None.
            version: Learner updates behind them.

        Raises:
            PolicyError: If a name or a shape does not fit, or a tensor is missing.
        """
        await asyncio.wrap_future(self.post_weights(weights, version))

    def post_weights(
        self,
        weights: nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None,
        version: int,
    ) -> Future[None]:
        """Ask for `update_weights` from code that is not async; the result says when it is done."""

        def act() -> None:
            if weights is not None and weights is not self.model:
                load_tensors(self.model, weights)
            self._batcher.forget()
            self._worker.version = version

        return self._worker.call(act)

    def _post_quietly(self, job: Job) -> None:
        try:
            self._worker.post(lambda: self._batcher.cancel(job))
        except PolicyError:
            return  # closed: the job was dropped with everything else

    def _completion(self, request: GenerateRequest, outcome: Outcome) -> Completion:
        return Completion(
            text=self._renderer.decode(outcome.ids),
            finish_reason=outcome.finish_reason,
            sampling=request.sampling,
            policy_id=self._id,
            tokens=TokenTrace(
                ids=outcome.ids, behavior_logprobs=outcome.logprobs, versions=outcome.versions
            ),
        )

    def _score(
        self, rows: Sequence[tuple[int, ...]], skip: Sequence[int]
    ) -> tuple[tuple[float, ...], ...]:
        self._runner.prepare()
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        found: list[tuple[float, ...]] = [()] * len(rows)
        part: list[int] = []
        for index in order:
            if part and (len(part) + 1) * len(rows[index]) > _SCORED_TOKENS:
                self._score_part(part, rows, skip, found)
                part = []
            part.append(index)
        if part:
            self._score_part(part, rows, skip, found)
        return tuple(found)

    def _score_part(
        self,
        part: Sequence[int],
        rows: Sequence[tuple[int, ...]],
        skip: Sequence[int],
        found: list[tuple[float, ...]],
    ) -> None:
        scores = self._runner.score([rows[i] for i in part], [skip[i] for i in part])
        for index, values in zip(part, scores, strict=True):
            found[index] = values


__all__ = ["TransformersPolicy"]
