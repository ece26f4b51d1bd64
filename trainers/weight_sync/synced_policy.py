"""`SyncedPolicy`: a policy on vLLM whose weights follow the learner's, every change proved.

A change: prepare, pause, transfer, reset the caches once, resume, prove, and only then let requests
in again. The proof is the log-probabilities of a fixed text: the engine's against the learner's,
within a stated tolerance. A change that cannot be proved ends the run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentgym.concurrency.limiter import PolicyLoad
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.transformers.weights import load_tensors
from agentgym.policies.vllm.control import EngineControl
from agentgym.policies.vllm.engine_policy import EnginePolicy
from agentgym.policies.vllm.fleet import Member
from agentgym.policies.vllm.policy import VllmPolicy
from agentgym.records import Completion
from agentgym.renderer.base import Renderer
from agentgym.trainers.learner.timers import Stopwatch
from agentgym.trainers.weight_sync.staging import named_weights
from agentgym.trainers.weight_sync.transports import AdapterTransfer, Transfer

_IDENTICAL_CHANGES = 3
"""Changes in a row of the learner's weights that leave an engine's probe bit-equal: at bfloat16 a
small step may, several may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far an engine's log-probabilities of the fixed text may be from the learner's.

    Example:
        Tolerance(mean=1e-3, largest=1e-2)
    """

    mean: float
    """Mean absolute difference, in nats."""
    largest: float
    """Largest absolute difference, in nats."""
    relative: float = 0.0
    """Share of a log-probability by which it may be off before that counts in the two above."""

    def excess(self, got: Sequence[float], wanted: Sequence[float]) -> list[float]:
        """Return by how much each log-probability is off beyond its share; NaN stays NaN."""
        off = [abs(a - b) for a, b in zip(got, wanted, strict=True)]
        free = [self.relative * abs(b) if math.isfinite(b) else 0.0 for b in wanted]
        return [d - f if not d <= f else 0.0 for d, f in zip(off, free, strict=True)]


FLOAT32 = Tolerance(mean=1e-3, largest=1e-2)
"""Seen with the same weights on one CPU: mean 1e-6, largest 1e-5."""
BFLOAT16 = Tolerance(mean=0.15, largest=1.5, relative=0.05)
"""Seen with the same weights of SmolLM2-135M: mean 0.06, largest 0.34. After a warm start that made
the fixed text unlikely: mean 0.13 to 0.20, largest 1.0 to 1.6, since a logit of 8 bits is off by a
share of its size."""


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for engines that compute in a number format."""
    return FLOAT32 if dtype == torch.float32 else BFLOAT16


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What one change of weights took, and how it was proved.

    Example:
        SyncReport(version=3, seconds={"prepare": 0.01, "pause": 0.02}, mean=1e-6, largest=1e-5)
    """

    version: int
    """Learner updates behind the new weights."""
    seconds: Mapping[str, float]
    """Wall time of each stretch."""
    mean: float
    """Mean absolute difference of the fixed text's log-probabilities, in nats."""
    largest: float
    """Largest of them."""

    @property
    def stopped_s(self) -> float:
        """Seconds from pause to resume, both included."""
        inside = ("pause", "start", "transfer", "finish", "reset", "resume")
        return sum(self.seconds.get(name, 0.0) for name in inside)


class SyncedPolicy:
    """Samples on vLLM with weights that a learner changes.

    Args:
        policy: Who samples.
        model: The learner's module, or a whole copy of it that `update_weights` fills.
        transfer: How weights get to the engines.
        tolerance: How far the proof may be off.
    """

    def __init__(
        self,
        policy: EnginePolicy,
        model: nn.Module,
        transfer: Transfer,
        *,
        tolerance: Tolerance,
    ) -> None:
        self.inner = policy
        self.last_sync: SyncReport | None = None
        self._model = model
        self._transfer = transfer
        self._tolerance = tolerance
        self._wanted: tuple[float, ...] = ()
        self._fingerprint: Tensor | None = None
        self._probes: dict[str, tuple[float, ...]] = {}
        self._unmoved: dict[str, int] = {}
        self._lock = asyncio.Lock()
        if isinstance(policy, VllmPolicy):
            policy.on_restart = self._restore

    # -- the policy ----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Name, for records."""
        return self.inner.id

    @property
    def renderer(self) -> Renderer:
        """Turns conversations into ids."""
        return self.inner.renderer

    @property
    def version(self) -> int:
        """Learner updates behind the weights that sample now."""
        return self.inner.version

    @property
    def max_context_tokens(self) -> int | None:
        """Ids that prompt and completion may have together; None if not known."""
        return self.inner.max_context_tokens

    async def generate(self, request: GenerateRequest) -> Completion:
        """Return the completion of one prompt; see the policy that samples for what it raises."""
        return await self.inner.generate(request)

    async def begin_episode(self, episode_id: str) -> None:
        """Announce an episode, before its first call."""
        await self.inner.begin_episode(episode_id)

    async def end_episode(self, episode_id: str) -> None:
        """Free whatever is kept for an episode."""
        await self.inner.end_episode(episode_id)

    async def load(self) -> PolicyLoad:
        """Return how busy the engines are."""
        return await self.inner.load()

    async def aclose(self) -> None:
        """Free everything, in the engines too where they still answer."""
        try:
            await self._transfer.release(self.inner.controls)
        finally:
            await self.inner.aclose()

    # -- changes of weights --------------------------------------------------------------------

    async def update_weights(self, weights: Any, version: int) -> None:
        """Sample with new weights, once they are proved.

        Args:
            weights: Named tensors or a module to copy from, or None where the learner's own module
                changed.
            version: Learner updates behind them.

        Raises:
            PolicyError: If a tensor is missing or does not fit, or the proof fails. Nothing samples
                any more then.
            InfrastructureError: If an engine cannot be reached.
        """
        if weights is not None and weights is not self._model:
            load_tensors(self._model, weights)
        async with self._lock:
            self.last_sync = await self._change_to(version, Stopwatch())

    async def _change_to(self, version: int, watch: Stopwatch) -> SyncReport:
        with watch.time("prepare"):
            await self._transfer.prepare(self._model, version)
            self._wanted = await asyncio.to_thread(probe_logprobs, self._model, self._ids)
        is_changed = self._has_changed()
        async with self.inner.change_to(version):
            controls = self.inner.controls
            await self._exchange(controls, watch)
            with watch.time("prove"):
                mean, largest = await self._prove(controls, self._wanted, is_changed=is_changed)
        return SyncReport(version=version, seconds=watch.seconds, mean=mean, largest=largest)

    async def verify(self) -> SyncReport:
        """Compare the engines' weights with the learner's as they are, without a transfer.

        Raises:
            PolicyError: If they differ.
        """
        wanted = await asyncio.to_thread(probe_logprobs, self._model, self._ids)
        mean, largest = await self._prove(self.inner.controls, wanted, is_changed=False)
        # What was sent stays what a restarted engine must have: the learner may have moved on.
        self._wanted = self._wanted or wanted
        return SyncReport(version=self.version, seconds={}, mean=mean, largest=largest)

    @property
    def _ids(self) -> tuple[int, ...]:
        return self.inner.probe_ids

    async def _exchange(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        """Bring the new weights in, the engines paused if they must be."""
        if self._transfer.is_joint:
            for control in controls:
                # A process that was started anew is in no group: the others would wait for it.
                if await self.inner.revive(control):
                    self._transfer.forget()
            await self._stop_and_send(controls, watch)
            return
        # Each engine by itself: one that dies meanwhile does not stop the others.
        watches = [watch, *(Stopwatch() for _ in controls[1:])]
        ends = await asyncio.gather(
            *map(self._send_to_one, controls, watches), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        self._name_adapter()

    async def _send_to_one(self, control: EngineControl, watch: Stopwatch) -> None:
        try:
            await self._stop_and_send([control], watch)
        except InfrastructureError:
            # A process that began anew knows nothing of the first try. The same one may be half
            # way through it.
            if not await self.inner.revive(control):
                raise
            await self._transfer.restore(control)
            await control.reset_cache()

    async def _stop_and_send(self, controls: Sequence[EngineControl], watch: Stopwatch) -> None:
        if not self._transfer.needs_pause:
            await self._transfer.send(controls, watch)
            return
        with watch.time("pause"):
            await asyncio.gather(*(control.pause() for control in controls))
            await self.inner.settle()
        await self._transfer.send(controls, watch)
        with watch.time("reset"):
            await asyncio.gather(*(control.reset_cache() for control in controls))
        with watch.time("resume"):
            await asyncio.gather(*(control.resume() for control in controls))

    def _name_adapter(self) -> None:
        if isinstance(self._transfer, AdapterTransfer) and self._transfer.model:
            self.inner.model = self._transfer.model

    async def _prove(
        self,
        controls: Sequence[EngineControl],
        wanted: tuple[float, ...],
        *,
        is_changed: bool,
        is_alone: bool = False,
    ) -> tuple[float, float]:
        """Return mean and largest difference from the learner over all engines.

        Args:
            controls: The engines.
            wanted: Log-probabilities of the fixed text by the weights that they must have.
            is_changed: The weights are others than before.
            is_alone: No request is under way on these engines.

        Raises:
            PolicyError: If one is past the tolerance, or the engine has not moved at all.
        """
        means: list[float] = []
        largest: list[float] = []
        for control in controls:
            got, right = (
                (await control.probe(), wanted)
                if self._transfer.needs_pause or is_alone
                else await self._continued(control)
            )
            off = [abs(a - b) for a, b in zip(got, right, strict=True)]
            means.append(sum(off) / len(off))
            largest.append(max(off))
            bound = self._tolerance
            beyond = bound.excess(got, right)
            # Written so that a NaN fails.
            if not (sum(beyond) / len(beyond) <= bound.mean and max(beyond) <= bound.largest):
                raise PolicyError(_unproved(control.name, bound, off, beyond))
            self._check_moved(control, got, is_changed=is_changed)
        return max(means), max(largest)

    async def _continued(
        self, control: EngineControl
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return log-probabilities of the same ids by engine and learner.

        Beside live requests the engine goes on after the fixed text, and the learner scores what
        came: some engines with adapters end where they score a prompt among other requests.
        """
        answer = await control.continued()
        ids = (*self._ids, *answer.ids)
        scores = await asyncio.to_thread(probe_logprobs, self._model, ids)
        return answer.logprobs, scores[-len(answer.ids) :]

    def _check_moved(
        self, control: EngineControl, got: tuple[float, ...], *, is_changed: bool
    ) -> None:
        is_unmoved = is_changed and self._probes.get(control.name) == got
        times = self._unmoved.get(control.name, 0) + 1 if is_unmoved else 0
        self._unmoved[control.name] = times
        self._probes[control.name] = got
        if times >= _IDENTICAL_CHANGES:
            raise PolicyError(
                f"the learner's weights changed {times} times and {control.name} gives the same "
                "log-probabilities to the last bit: what is sent does not arrive"
            )

    def _has_changed(self) -> bool:
        """Return whether the learner's weights are others than at the last change."""
        before, self._fingerprint = self._fingerprint, fingerprint(self._model)
        return before is not None and not torch.equal(before, self._fingerprint)

    async def _restore(self, member: Member) -> None:
        """Give a server that was started anew the weights that were sent last, and prove them."""
        policy = cast("VllmPolicy", self.inner)
        control = policy.control(member.server)
        async with self._lock:  # not between two versions
            if not member.is_doubtful or not self._wanted:
                return  # it got the newest meanwhile, or its folder's own weights are right
            await self._transfer.restore(control)
            if self._transfer.needs_pause:
                await control.reset_cache()
            # A new process has no request yet. The learner may have moved on since.
            await self._prove([control], self._wanted, is_changed=False, is_alone=True)


def _unproved(name: str, bound: Tolerance, off: Sequence[float], beyond: Sequence[float]) -> str:
    share = f" beyond {bound.relative:.0%} of each" if bound.relative else ""
    mean = sum(beyond) / len(beyond)
    return (
        f"{name} does not have the learner's weights: of the fixed text's log-probabilities the "
        f"mean difference{share} is {mean:.4g} (at most {bound.mean:g}), the largest "
        f"{max(beyond):.4g} (at most {bound.largest:g}); the mean of all differences is "
        f"{sum(off) / len(off):.4g}"
    )


def probe_logprobs(model: nn.Module, ids: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probability that a model gives to each id but the first."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            inputs = torch.tensor([list(ids)], device=device)
            logits: Tensor = model(input_ids=inputs).logits[0, :-1]
            logprobs = logits.float().log_softmax(dim=-1)
            chosen = logprobs.gather(-1, inputs[0, 1:, None])[:, 0]
    finally:
        model.train(was_training)
    values: list[float] = chosen.tolist()
    return tuple(value if not math.isnan(value) else -math.inf for value in values)


def fingerprint(model: nn.Module) -> Tensor:
    """Return [tensor] norms of a model's weights: others after any update that changes them."""
    tensors = list(named_weights(model).values())
    norms: list[Tensor] = cast("Any", torch)._foreach_norm(tensors)  # one call for all tensors
    return torch.stack([norm.float() for norm in norms]).cpu()


__all__ = [
    "BFLOAT16",
    "FLOAT32",
    "SyncReport",
    "SyncedPolicy",
    "Tolerance",
    "fingerprint",
    "probe_logprobs",
    "tolerance_of",
]
