"""From what a user writes (`tiny:base`, a run, a checkpoint) to a folder, and on to a model.

Safetensors only, no code from the folder, nothing from a network.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agentgym.config.validation import InvalidInputError
from agentgym.errors import ConfigError, MissingExtraError
from agentgym.runs.folder import read_config
from agentgym.runs.model_folder import weight_problems
from agentgym.runs.policies import PolicyKind, PolicyName, check_policy, start_of
from agentgym.trainers.learner.gradient_checkpointing import enable_recomputing
from agentgym.trainers.learner.token_logprobs import check_head
from agentgym.trainers.models.progress_bars import no_progress_bars, no_reports
from agentgym.trainers.models.save import save_policy
from agentgym.trainers.models.smollm2 import smollm2_folder
from agentgym.trainers.models.tiny import TinySize, build_tiny

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LORA_TARGETS = "all-linear"
_LORA_SCALE = 2.0
"""Default `lora_alpha` is this times the rank."""


def resolve_policy(name: str, *, folder: Path | None = None) -> Path:
    """Return the model folder that a policy's name means.

    Args:
        name: As on the command line, of a policy that has weights on this machine.
        folder: Where a new tiny model, or the model of a checkpoint, is written; by default a
            temporary folder.

    Raises:
        ConfigError: If the name is none of these, or the folder holds no readable model.
    """
    policy = check_policy(name, trained=True)
    if policy.kind is PolicyKind.SMOLLM2:
        return smollm2_folder()
    if policy.kind in {PolicyKind.TINY, PolicyKind.CHECKPOINT}:
        target = folder or Path(tempfile.mkdtemp(prefix="agentgym-policy-")) / "model"
        if policy.kind is PolicyKind.TINY:
            return build_tiny(target, size=name.partition(":")[2] or TinySize.SMALL)
        return export_checkpoint(policy, target)
    if policy.folder is None:
        raise ConfigError(f"{name!r} has no model folder on this machine")
    return policy.folder


def export_checkpoint(policy: PolicyName, target: Path) -> Path:
    """Write the model of a run's checkpoint as a transformers folder and return it.

    Raises:
        ConfigError: If the model that the run began from is not there.
        CheckpointError: If the checkpoint does not fit it.
    """
    # Imported here: a learner is made of loaded models.
    from agentgym.trainers.learner.checkpoint import load_weights

    assert policy.run is not None
    assert policy.folder is not None
    config = read_config(policy.run)
    with tempfile.TemporaryDirectory(prefix="agentgym-start-") as temporary:
        base = resolve_policy(start_of(policy.run, config), folder=Path(temporary) / "model")
        model = load_model(base, config.model, dtype="float32")
        load_weights(policy.folder, model)
        return save_policy(model, base, target)


def load_model(
    folder: Path,
    settings: Any = None,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Return a folder's causal model, in evaluation mode.

    Args:
        folder: A transformers folder.
        settings: `agentgym.config`'s `ModelConfig`, or anything with its `lora_rank`,
            `lora_alpha` and `gradient_checkpointing`; None takes none of them.
        dtype: `float32`, `bfloat16`, or `auto`: bfloat16 on a GPU, float32 on a CPU, where
            bfloat16 is slower than float32.
        device: Where to put it.

    Raises:
        ConfigError: If the folder cannot be read as a causal model.
        MissingExtraError: If adapters are asked for and peft is not installed.
    """
    problems = list(weight_problems(folder))
    if problems:
        raise InvalidInputError(problems)
    place = torch.device(device)
    number = _number_format(dtype, place)
    model = _read(folder, number).to(place)
    rank = getattr(settings, "lora_rank", 0)
    if rank:
        model = add_lora(model, rank=rank, alpha=getattr(settings, "lora_alpha", None))
    if getattr(settings, "gradient_checkpointing", False):
        _enable_checkpointing(model, is_frozen=bool(rank))
    return model.eval()


def load_learner(
    folder: Path,
    settings: Any = None,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, torch.dtype | None]:
    """Return a folder's model to be trained, and the format of its matrix products.

    Weights that are trained are kept in float32: an update of 1e-6 is lost in a bfloat16 weight of
    0.02, whose neighbours are 1e-4 away. In bfloat16 then only products are computed. With
    adapters the frozen weights are kept in bfloat16 and the adapters in float32.

    Args:
        folder: A transformers folder.
        settings: As for `load_model`.
        dtype: As for `load_model`: the format to compute in.
        device: Where to put it.

    Returns:
        The model, and bfloat16, or None to compute in the weights' own format.

    Raises:
        ConfigError: If the folder cannot be read as a causal model, or its log-probabilities are
            not those of its head's output.
        MissingExtraError: If adapters are asked for and peft is not installed.
    """
    number = _number_format(dtype, torch.device(device))
    is_plain = number is torch.float32
    kept = dtype if is_plain or getattr(settings, "lora_rank", 0) else "float32"
    model = load_model(folder, settings, dtype=kept, device=device)
    check_head(model)
    return model, None if is_plain else number


def add_lora(model: nn.Module, *, rank: int, alpha: float | None = None) -> nn.Module:
    """Return the model with low-rank adapters on every linear layer but the output head.

    Args:
        model: A causal model of transformers.
        rank: Rank of the adapters, at least 1.
        alpha: The adapters' output is scaled by `alpha / rank`; default twice the rank.

    Raises:
        MissingExtraError: If peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("'model.lora_rank'", extra="train") from error
    # peft declares an int; its scale is alpha / r, for any number.
    scale: Any = alpha if alpha is not None else _LORA_SCALE * rank
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=scale,
        target_modules=_LORA_TARGETS,
        # Dropout would make the learner's ratios noisy against its own samples.
        lora_dropout=0.0,
    )
    with warnings.catch_warnings():
        # peft asks transformers by names that transformers is about to drop.
        warnings.simplefilter("ignore", FutureWarning)
        wrapped: Any = get_peft_model(cast("Any", model), config)
    return wrapped


def _enable_checkpointing(model: Any, *, is_frozen: bool) -> None:
    enable_recomputing(model)
    if is_frozen:
        # Frozen embeddings give activations without a gradient, which checkpoints need.
        model.enable_input_require_grads()


def _number_format(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in _DTYPES:
        raise ConfigError(f"'dtype' must be one of {['auto', *_DTYPES]!r} (got {dtype!r})")
    return _DTYPES[dtype]


def check_fit(folder: Path) -> None:
    """Check that a folder has every weight of the model that its config names, reading none.

    Raises:
        ConfigError: If weights are missing or have another shape, or the config names no causal
            model: what is missing would be random.
    """
    _fitting(folder, device_map="meta")


def _read(folder: Path, number: torch.dtype) -> nn.Module:
    return _fitting(folder, dtype=number)


def _fitting(folder: Path, **options: Any) -> nn.Module:
    """Return the model of a folder, all of whose weights come from it."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars(), no_reports():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                # What does not fit is in `found`, in place of an error that has no names.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise ConfigError(
            f"{str(folder)!r} cannot be loaded as a causal model: {reason}"
        ) from error
    model, found = loaded
    # Without those that are tied to others, or that the model makes itself.
    missing = sorted(found["missing_keys"])
    unlike = sorted(name for name, *_ in found["mismatched_keys"])
    if missing or unlike:
        raise ConfigError(_unfit(folder, type(model).__name__, missing=missing, unlike=unlike))
    return model


def _unfit(folder: Path, model: str, *, missing: list[str], unlike: list[str]) -> str:
    parts = [f"{len(missing)} are missing (such as {missing[0]})"] if missing else []
    parts += [f"{len(unlike)} have another shape (such as {unlike[0]})"] if unlike else []
    return (
        f"{str(folder)!r} does not hold the weights of {model}, which its config.json names: "
        f"{' and '.join(parts)}; give the config that belongs to the weights"
    )


__all__ = ["add_lora", "check_fit", "export_checkpoint", "load_model", "resolve_policy"]
