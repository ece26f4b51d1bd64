"""What a run is: `RunConfig` and its sections, frozen. How one is read stands in `loading`.

At most two levels, `section.field`; the overrides of a preset are one flat mapping. Each field says
below itself what it means. Cross-field contradictions raise when a config is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue, ValidationInfo, model_validator

from agentgym.config.section import Section
from agentgym.records import Sampling
from agentgym.records.limits import Limits
from agentgym.renderer.base import History

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]


class LearningRateSchedule(StrEnum):
    """How the learning rate goes on after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Precision(StrEnum):
    """Number format to compute in; weights that are trained are kept in float32."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Device(StrEnum):
    """Where the learner and in-process sampling run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


MICRO_BATCH_TOKENS = {Device.CPU: 2_048, Device.CUDA: 16_384}
"""Tokens of one pass where none are configured. On a CPU small passes over rows of like length are
faster than one large padded one, and a model of 135 million parameters keeps 3.5 MB a token."""


class SamplingEngine(StrEnum):
    """What samples in this process."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"


class WeightSync(StrEnum):
    """How a learner's weights get to vLLM servers."""

    AUTO = "auto"
    FOLDER = "folder"
    IPC = "ipc"
    NCCL = "nccl"
    ADAPTER = "adapter"


class Stragglers(StrEnum):
    """What becomes of a group's last episodes while the learner waits for them."""

    WAIT = "wait"
    CLOSE = "close"


class PartialRollouts(StrEnum):
    """What becomes of an episode in the middle of which the weights change."""

    KEEP = "keep"
    DROP = "drop"


class Concurrency(StrEnum):
    """Who decides how many episodes are live."""

    FIXED = "fixed"
    ADAPTIVE = "adaptive"


class EnvSource(Section):
    """One environment or suite that a run takes tasks from."""

    name: Annotated[str, Field(min_length=1)]
    """Id of an environment (`math/arithmetic-v0`) or of a suite (`math/arithmetic`)."""
    weight: PositiveFloat = 1.0
    """Share of the tasks, relative to the other sources."""
    kwargs: Mapping[str, JsonValue] = {}
    """Arguments of the environment's constructor, or of the suite's generator."""
    split: str = "train"
    """Which split of a suite."""


class RolloutConfig(Section):
    """How training episodes are sampled."""

    groups_per_step: Positive = 16
    """Tasks of one training step."""
    group_size: Positive = 8
    """Episodes of one task, from the same start."""
    max_concurrent: Positive = 256
    """Live episodes at most."""
    temperature: NotNegativeFloat = 1.0
    """Divides the logits before the softmax."""
    top_p: ShareAboveZero = 1.0
    """Nucleus bound; 1 keeps every token."""
    top_k: NotNegative = 0
    """Number of most likely tokens kept; 0 keeps every token."""
    min_p: ShareBelowOne = 0.0
    """Tokens below this share of the largest probability are left out; 0 keeps every token."""
    max_new_tokens: Positive = 256
    """Sampled tokens of one turn at most."""
    history: History = History.VERBATIM
    """How earlier turns enter the next prompt: as sampled, or rewritten by the chat template."""
    retries: NotNegative = 2
    """Further tries of an episode whose infrastructure failed."""
    max_staleness: NotNegative = 0
    """Updates that may lie between the sampling of a token and the step that trains on it: episodes
    are begun so far ahead of learning. 0 is synchronous training."""
    stragglers: Stragglers = Stragglers.WAIT
    """What becomes of the last episodes of a group that the learner waits for: waited for (wait),
    or ended once the group has `min_group_size` (close)."""
    min_group_size: Positive | None = None
    """Episodes with which `stragglers=close` closes a group; null takes three quarters of
    `group_size`, rounded up."""
    partial: PartialRollouts = PartialRollouts.KEEP
    """What becomes of an episode in the middle of which the weights change: it goes on under the
    new ones, each token with its own version (keep), or begins anew (drop)."""
    concurrency: Concurrency = Concurrency.FIXED
    """Live episodes: always up to `max_concurrent` (fixed), or as many as the policy's load allows
    (adaptive)."""
    engine: SamplingEngine = SamplingEngine.TRANSFORMERS
    """What samples in this process: transformers, or vLLM's engine on the learner's GPU."""
    weight_sync: WeightSync = WeightSync.AUTO
    """How new weights get to vLLM servers: a saved file (folder; servers on a CPU), the memory of a
    GPU that both use (ipc), from GPU to GPU (nccl), or adapters as files (adapter). Auto takes
    folder on a CPU, ipc where there is one GPU, nccl where there are more."""

    @property
    def closes_at(self) -> int | None:
        """Episodes with which a group that is waited for is closed; None to wait for all."""
        if self.stragglers is Stragglers.WAIT:
            return None
        own = self.min_group_size
        return own if own is not None else -(-self.group_size * 3 // 4)

    def sampling(self) -> Sampling:
        """Return how a training turn is drawn, without stops and seed."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_new_tokens=self.max_new_tokens,
        )


class LimitsConfig(Section):
    """What may end an episode from outside; none keeps the environment's own bound."""

    max_turns: Positive | None = None
    """Calls of the policy in one episode."""
    max_tokens: Positive | None = None
    """Sampled tokens in one episode, over all turns."""
    max_context_tokens: Positive | None = None
    """Prompt plus completion of one call."""
    max_observation_chars: Positive | None = None
    """Longer observations are shortened in the middle, with a notice."""
    max_tool_calls: Positive | None = None
    """Executed tool calls in one episode."""
    max_seconds: PositiveFloat | None = None
    """Wall time of one episode, in seconds."""
    step_timeout_s: PositiveFloat | None = None
    """Wall time of one reset or step of the environment, in seconds."""
    generate_timeout_s: PositiveFloat | None = None
    """Wall time of one call of the policy, in seconds."""

    def to_limits(self) -> Limits:
        """Return the bounds as a record, to be merged with the environment's own."""
        return Limits(**self.model_dump())


class OptimConfig(Section):
    """How the weights are updated."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""
    warmup_steps: NotNegative = 0
    """Updates over which the learning rate rises from 0."""
    schedule: LearningRateSchedule = LearningRateSchedule.CONSTANT
    """How the learning rate goes on: constant, or down to 0 at the last step."""
    weight_decay: NotNegativeFloat = 0.0
    """Decoupled weight decay."""
    beta1: ShareBelowOne = 0.9
    """Decay of the first moment."""
    beta2: ShareBelowOne = 0.99
    """Decay of the second moment."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients with a larger norm are scaled down to it; none leaves them."""
    epochs: Positive = 1
    """Passes over the episodes of a step."""
    minibatches: Positive = 1
    """Optimiser updates of one pass."""
    micro_batch_tokens: Positive | None = None
    """Tokens of one forward and backward pass; changes memory and speed, never the result. null
    takes 2,048 on a CPU and 16,384 on a GPU."""
    dtype: Precision = Precision.AUTO
    """Number format; auto takes float32 on a CPU and bfloat16 on a GPU."""
    device: Device = Device.AUTO
    """Where to run; auto takes a GPU where there is one."""

    @property
    def updates_per_step(self) -> int:
        """Planned updates of a step: fewer are taken where there is nothing to learn from."""
        return self.epochs * self.minibatches


class WarmstartConfig(Section):
    """Supervised steps on the environments' scripted experts, before the first episode."""

    steps: NotNegative = 0
    """Updates; 0 leaves the warm start out."""
    demos: Positive = 2_000
    """Expert episodes to learn from."""
    batch_size: Positive = 64
    """Expert episodes of one update."""
    learning_rate: PositiveFloat = 2e-3
    """Peak learning rate."""
    warmup_steps: NotNegative = 50
    """Updates over which the learning rate rises from 0."""
    decay_share: Share = 0.3
    """Last share of the updates, over which the learning rate falls to 0."""
    weight_decay: NotNegativeFloat = 0.01
    """Decoupled weight decay."""
    guess_share: Share = 0.0
    """Share of the demonstrations which answer at once, without the tools, wrongly."""
    max_seconds: PositiveFloat | None = None
    """Wall time at most."""
    path: str | None = None
    """Folder of an earlier warm start to begin from, in place of a new one."""


class EvalConfig(Section):
    """Evaluation of the policy on held-out tasks, with its own sampling."""

    every: NotNegative = 0
    """Steps between two evaluations; 0 leaves out those in between."""
    at_start: bool = True
    """Evaluate before the first step, after a warm start."""
    at_end: bool = True
    """Evaluate after the last step."""
    tasks: Positive = 300
    """Tasks of each suite at most, drawn once for all evaluations of the run."""
    attempts: Positive = 1
    """Episodes of each task."""
    temperature: NotNegativeFloat = 1.0
    """Divides the logits before the softmax; independent of training's."""
    top_p: ShareAboveZero = 1.0
    """Nucleus bound; independent of training's."""
    top_k: NotNegative = 0
    """Number of most likely tokens kept; 0 keeps every token."""
    min_p: ShareBelowOne = 0.0
    """Tokens below this share of the largest probability are left out."""
    max_new_tokens: Positive = 256
    """Sampled tokens of one turn at most."""
    split: str = "held_out"
    """Which split of the suites."""
    suites: tuple[str, ...] = ()
    """Suites or environments; empty takes the run's own."""
    seed: NotNegative = 0
    """Seed of the choice of tasks and of their episodes; independent of training's."""

    def sampling(self) -> Sampling:
        """Return how an evaluation turn is drawn, without stops and seed."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_new_tokens=self.max_new_tokens,
        )


class BudgetConfig(Section):
    """What ends a run before its last step."""

    minutes: PositiveFloat | None = None
    """Wall time of training, evaluations included."""
    tokens: Positive | None = None
    """Sampled tokens of training."""


class CheckpointConfig(Section):
    """When the state of a run is saved."""

    every: NotNegative = 20
    """Steps between two checkpoints; 0 saves at the end only."""
    keep: Positive = 2
    """Checkpoints kept; older ones are deleted."""


class ModelConfig(Section):
    """What of the model is trained, and how."""

    lora_rank: NotNegative = 0
    """Rank of low-rank adapters, which are then all that is trained; 0 trains every weight."""
    lora_alpha: PositiveFloat | None = None
    """Scale of the adapters; none takes twice the rank."""
    gradient_checkpointing: bool = False
    """Trade time for memory: compute activations a second time in the backward pass."""


class RunConfig(Section):
    """Everything that decides a run. Equal configs, code and machine give equal runs."""

    entry_keys: ClassVar[tuple[str, ...]] = tuple(EnvSource.model_fields)

    envs: tuple[EnvSource, ...] = ()
    """Environments and suites to train on."""
    policy: Annotated[str, Field(min_length=1)] = "tiny"
    """`tiny[:small|base|large]`, `smollm2`, a transformers folder, `vllm:URL`."""
    preset: Annotated[str, Field(min_length=1)] = "grpo"
    """Name of a preset, or the path of a preset's YAML file."""
    preset_overrides: Mapping[str, JsonValue] = {}
    """Parameters of the preset's parts, such as `gate.clip_high: 0.3`."""
    seed: NotNegative = 0
    """Seed of everything that training draws."""
    steps: Positive = 100
    """Training steps."""
    run_dir: str = ""
    """Folder of the run; empty takes the next free one below `runs/`."""
    allow_leak: bool = False
    """Go on although held-out tasks are among the training tasks."""
    deterministic: bool = False
    """One thread and a fixed order of batches: bit-equal repetition and resumption, slower."""
    rollout: RolloutConfig = RolloutConfig()
    limits: LimitsConfig = LimitsConfig()
    optim: OptimConfig = OptimConfig()
    warmstart: WarmstartConfig = WarmstartConfig()
    eval: EvalConfig = EvalConfig()
    budget: BudgetConfig = BudgetConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    model: ModelConfig = ModelConfig()

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> RunConfig:
        # Imported here: the rules speak of the schema.
        from agentgym.config.consistency import contradictions

        found = contradictions(self)
        context: Any = info.context
        if context is not None:  # a loader reports them together with everything else
            context["contradictions"].extend(found)
        elif found:
            raise ValueError("; ".join(problem.text for problem in found))
        return self

    @property
    def is_sampled_by_vllm(self) -> bool:
        """Whether vLLM samples: on servers, or in this process."""
        return self.policy.startswith("vllm:") or self.rollout.engine is SamplingEngine.VLLM

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data that JSON and YAML can hold."""
        return self.model_dump(mode="json")


SECTIONS: Mapping[str, type[Section]] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
"""Name of each section and its class."""
