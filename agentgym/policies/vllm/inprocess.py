"""`InprocessVllmPolicy`: vLLM's engine in this process, where engine and learner share a GPU.

The engine's core runs in a process that vLLM starts; requests reach it without HTTP. The policy is
the same as that of servers, through another door.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agentgym.concurrency.limiter import PolicyLoad
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.policies.base import require_prompts
from agentgym.policies.completions import check_logprobs
from agentgym.policies.vllm.control import EngineControl
from agentgym.policies.vllm.engine_policy import EnginePolicy, Partial, Pause
from agentgym.policies.vllm.inprocess_control import InprocessControl, vllm_module
from agentgym.policies.vllm.start_lock import blocking_gpu_turn, gpus_of, has_gpu
from agentgym.policies.vllm.wire import Answer
from agentgym.records import Sampling
from agentgym.renderer.base import Renderer

_ENVIRONMENT = {
    # Handles to tensors that learner and engine share are pickled between their processes.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles where there is no compiler
}
_REASONS = frozenset({"stop", "length", "abort"})
_START_S = 900.0
"""Longest wait for other engines that start on the same GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessOptions:
    """How the engine is started and used."""

    gpu_memory_utilization: float = 0.4
    """Share of the GPU's memory that the engine takes, weights included."""
    max_context_tokens: int | None = None
    """Prompt and completion together; None takes what the model declares."""
    max_rows: int = 512
    """Requests sampled at once."""
    is_eager: bool = False
    """Leave out compilation and graphs: starts sooner, runs slower."""
    is_seeded: bool = True
    """Pass on each request's seed. On a GPU a seeded request costs a kernel of its own for each
    id."""
    timeout_s: float = 600.0
    """Longest wait for one answer."""
    partial: Partial = Partial.KEEP
    """What becomes of completions that a change of weights cuts."""
    pause: Pause = Pause.CUT
    """What a change of weights does to requests under way."""
    takes_tensors: bool = False
    """Take tensors through vLLM's own ipc transfer, too."""
    extra: Mapping[str, Any] | None = None
    """Further engine arguments of vLLM, by their own names."""


class InprocessVllmPolicy(EnginePolicy):
    """Samples with an `AsyncLLM` of vLLM.

    Made by `open_inprocess`. It must be closed: the engine's process ends with it.

    Args:
        engine: An `AsyncLLM`, its log-probabilities those of the distribution sampled from.
        renderer: The renderer of the model's tokenizer.
        policy_id: Name, for records.
        version: Learner updates behind the weights.
        max_context_tokens: Prompt and completion together.
        options: How it is used.
        seed: Seed of the stream behind requests that bring no seed.
    """

    def __init__(
        self,
        engine: Any,
        renderer: Renderer,
        *,
        policy_id: str = "vllm-inprocess",
        version: int = 0,
        max_context_tokens: int | None = None,
        options: InprocessOptions | None = None,
        seed: int = 0,
    ) -> None:
        self.options = options if options is not None else InprocessOptions()
        super().__init__(
            renderer,
            model="policy",
            policy_id=policy_id,
            version=version,
            max_context_tokens=max_context_tokens,
            partial=self.options.partial,
            pause=self.options.pause,
            seed=seed,
        )
        self.engine: Any = engine
        self._numbers = itertools.count()
        self._under_way = 0

    @property
    def controls(self) -> tuple[InprocessControl, ...]:
        """What the weights change through."""
        return (InprocessControl(self, is_frozen=self.options.pause is Pause.FREEZE),)

    async def begin_episode(self, episode_id: str) -> None:
        """Do nothing: the engine finds what it has seen of a prompt itself."""

    async def end_episode(self, episode_id: str) -> None:
        """Do nothing: the engine drops what it has kept when it needs the room."""

    async def aclose(self) -> None:
        """End the engine and its process. May be called more than once."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.shutdown()

    async def load(self) -> PolicyLoad:
        """Return how many requests the engine has, and how many beyond those it samples at once."""
        waiting = max(0, self._under_way - self.options.max_rows)
        return PolicyLoad(running=self._under_way - waiting, waiting=waiting)

    async def revive(self, control: EngineControl) -> bool:
        """Return False: the engine ends with its process."""
        return False

    async def note_change(self) -> None:
        """Do nothing: the engine cannot be replaced by another one unseen."""

    async def answer(self, episode_id: str, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """Return what the engine samples after `prompt`.

        Raises:
            InfrastructureError: If the engine is dead, or there is no answer in time.
            PolicyError: If the engine refuses the request.
        """
        params = self._params(sampling)
        output: Any = await self._run(prompt, params, salt=self.ask().cache_salt)
        completion = output.outputs[0]
        reason = str(completion.finish_reason)
        if reason not in _REASONS:
            raise InfrastructureError(f"the engine ended a request by {reason!r}")
        ids: tuple[int, ...] = tuple(completion.token_ids)
        is_greedy = sampling.temperature == 0
        logprobs = (0.0,) * len(ids) if is_greedy else sampled_logprobs(completion.logprobs, ids)
        return Answer(ids=ids, logprobs=logprobs, reason=reason)

    async def probe(self) -> tuple[float, ...]:
        """Return the log-probabilities that the engine gives to the fixed text."""
        (values,) = await self.score([(self.probe_ids[:1], self.probe_ids[1:])])
        return values

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
        found: list[tuple[float, ...]] = []
        for prompt, target in pairs:
            ids = (*prompt, *target)
            params = vllm_module("vllm").SamplingParams(
                max_tokens=1, prompt_logprobs=0, detokenize=False
            )
            output: Any = await self._run(ids, params, salt=self.ask().cache_salt)
            entries = cast("Sequence[Mapping[int, Any]]", output.prompt_logprobs)
            scores = tuple(
                float(entries[place][ids[place]].logprob) for place in range(len(prompt), len(ids))
            )
            check_logprobs(scores, least=-math.inf)
            found.append(scores)
        return tuple(found)

    def _params(self, sampling: Sampling) -> Any:
        return vllm_module("vllm").SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=sampling.max_new_tokens,
            logprobs=0,
            flat_logprobs=True,  # lists of numbers in place of an object for each id
            seed=sampling.seed if self.options.is_seeded else None,
            ignore_eos=True,  # the renderer's end ids decide, and they alone
            stop_token_ids=list(self._end_ids),
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=bool(sampling.stop),
            skip_special_tokens=False,
            detokenize=bool(sampling.stop),
            output_kind=vllm_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY,
        )

    async def _run(self, prompt: Sequence[int], params: Any, *, salt: str) -> Any:
        """Return the final output of one request; a cancelled call stops generating."""
        faults = vllm_module("vllm.v1.engine.exceptions")
        text = {"prompt_token_ids": list(prompt), "cache_salt": salt}
        last: Any = None
        self._under_way += 1
        try:
            async with asyncio.timeout(self.options.timeout_s):
                name = f"agentgym-{next(self._numbers)}"
                async for output in self.engine.generate(text, params, name):
                    last = output
        except TimeoutError as error:
            text = f"the engine gave no answer within {self.options.timeout_s:g} s"
            raise InfrastructureError(text) from error
        except (faults.EngineDeadError, faults.EngineGenerateError) as error:
            raise InfrastructureError(f"the engine failed: {error}") from error
        except ValueError as error:
            raise PolicyError(f"the engine refused the request: {error}") from error
        finally:
            self._under_way -= 1
        if last is None:
            raise InfrastructureError("the engine ended a request without an answer")
        return last


def open_inprocess(
    folder: Path | str,
    renderer: Renderer,
    *,
    options: InprocessOptions | None = None,
    policy_id: str = "vllm-inprocess",
    version: int = 0,
) -> InprocessVllmPolicy:
    """Start an engine for a model folder and return its policy. Takes up to minutes.

    Call it inside the loop that the policy is used in.

    Raises:
        MissingExtraError: If vLLM is not installed.
    """
    chosen = options if options is not None else InprocessOptions()
    os.environ.update({**_ENVIRONMENT, **os.environ})  # vLLM reads them when it is imported
    make_arguments = vllm_module("vllm.engine.arg_utils").AsyncEngineArgs
    make_engine = vllm_module("vllm.v1.engine.async_llm").AsyncLLM
    arguments: dict[str, Any] = {
        "model": str(folder),
        "gpu_memory_utilization": chosen.gpu_memory_utilization,
        "max_model_len": chosen.max_context_tokens,
        "max_num_seqs": chosen.max_rows,
        "enforce_eager": chosen.is_eager,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # none of the model's own sampling defaults
        **(chosen.extra or {}),
    }
    if chosen.takes_tensors:
        make_config = vllm_module("vllm.config.weight_transfer").WeightTransferConfig
        arguments["weight_transfer_config"] = make_config(backend="ipc")
    with blocking_gpu_turn(gpus_of(None) if has_gpu() else (), patience_s=_START_S):
        engine: Any = make_engine.from_engine_args(make_arguments(**arguments))
    # What was imported for the engine stays: no collection need look at it again.
    gc.collect()
    gc.freeze()
    return InprocessVllmPolicy(
        engine,
        renderer,
        policy_id=policy_id,
        version=version,
        max_context_tokens=int(engine.vllm_config.model_config.max_model_len),
        options=chosen,
    )


def sampled_logprobs(flat: Any, ids: Sequence[int]) -> tuple[float, ...]:
    """Return [time] log-probabilities of sampled ids from vLLM's flat lists.

    At each place the sampled id stands first; the most likely one may stand beside it.

    Args:
        flat: vLLM's `FlatLogprobs`, or None for a completion without ids.
        ids: What was sampled.

    Raises:
        InfrastructureError: If they are not those of the ids.
    """
    places: Sequence[int] = flat.start_indices if flat else ()
    if [flat.token_ids[place] for place in places] != list(ids):
        raise InfrastructureError(
            f"the engine gave log-probabilities of other ids than the {len(ids)} that it sampled"
        )
    return tuple([float(flat.logprobs[place]) for place in places])


__all__ = ["InprocessControl", "InprocessOptions", "InprocessVllmPolicy", "open_inprocess"]
