"""Log-probabilities of trained tokens: any layout, any chunk, the model's own numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from agentgym.errors import ConfigError
from agentgym.trainers.learner.layout import MicroBatch
from agentgym.trainers.learner.token_logprobs import (
    TokenScorer,
    block_mask,
    check_head,
    token_outputs,
)


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).double()


ROWS = [[1, 2, 3, 4, 5], [6, 7, 8]]
MASK = torch.tensor([[False, False, True, False, True], [False, True, True, False, False]])


def padded() -> MicroBatch:
    return MicroBatch(
        rows=torch.tensor([0, 1]),
        ids=torch.tensor([ROWS[0], [*ROWS[1], 0, 0]]),
        position_ids=torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]),
        segment_ids=torch.tensor([[0] * 5, [1, 1, 1, -1, -1]]),
        index=torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0]]),
        valid=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
    )


def packed() -> MicroBatch:
    return MicroBatch(
        rows=torch.tensor([0, 1]),
        ids=torch.tensor([[*ROWS[0], *ROWS[1]]]),
        position_ids=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]),
        segment_ids=torch.tensor([[0] * 5 + [1] * 3]),
        index=torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 0, 0]]),
        valid=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
    )


def expected(model: nn.Module, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies, row by row, from the model's own logits."""
    logprobs, entropy = torch.zeros(2, 5).double(), torch.zeros(2, 5).double()
    for row, ids in enumerate(ROWS):
        logits = model(input_ids=torch.tensor([ids])).logits[0] / temperature
        distribution = logits.log_softmax(-1)
        for time in range(1, len(ids)):
            if MASK[row, time]:
                logprobs[row, time] = distribution[time - 1, ids[time]]
                entropy[row, time] = -(distribution[time - 1].exp() * distribution[time - 1]).sum()
    return logprobs, entropy


@pytest.mark.parametrize("layout", [padded, packed])
@pytest.mark.parametrize("temperature", [0.5, 1.5])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_token_outputs_agree_with_the_logits_of_each_row_g1(
    layout: object, temperature: float, chunk: int
) -> None:
    model = small_model()
    outputs = token_outputs(
        model,
        layout(),  # type: ignore[operator]
        MASK,
        temperature=temperature,
        with_entropy=True,
        chunk_tokens=chunk,
    )
    logprobs, entropy = expected(model, temperature=temperature)
    torch.testing.assert_close(outputs.logprobs, logprobs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(outputs.entropy, entropy, rtol=1e-10, atol=1e-12)


def test_token_outputs_apply_temperature_before_the_softmax_g1() -> None:
    """Logits [2, 1, 0] at T = 0.5, token 0: 4 - log(e^4 + e^2 + e^0) = -0.142932."""

    class Fixed(nn.Module):
        config = LlamaConfig()

        def get_decoder(self) -> nn.Module:
            return self

        def get_output_embeddings(self) -> nn.Module:
            return nn.Identity()

        def forward(self, input_ids: Tensor, **_: object) -> object:
            states = torch.tensor([2.0, 1.0, 0.0]).expand(*input_ids.shape, 3)
            return type("Out", (), {"last_hidden_state": states})()

    micro = MicroBatch(
        rows=torch.tensor([0]),
        ids=torch.tensor([[1, 0]]),
        position_ids=torch.tensor([[0, 1]]),
        segment_ids=torch.tensor([[0, 0]]),
        index=torch.tensor([[0, 1]]),
        valid=torch.tensor([[True, True]]),
    )
    outputs = token_outputs(Fixed(), micro, torch.tensor([[False, True]]), temperature=0.5)
    assert outputs.logprobs[0, 1].item() == pytest.approx(-0.142932, abs=1e-6)


def test_token_outputs_give_the_gradient_of_the_plain_model() -> None:
    model = small_model()
    weights = torch.tensor([[0.0, 0.0, 0.3, 0.0, -1.1], [0.0, 0.7, 0.2, 0.0, 0.0]]).double()
    (weights * token_outputs(model, packed(), MASK, temperature=0.7).logprobs).sum().backward()
    ours = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    model.zero_grad()
    (weights * expected(model, temperature=0.7)[0]).sum().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_token_outputs_of_an_empty_mask_are_zero() -> None:
    mask = torch.zeros_like(MASK)
    outputs = token_outputs(small_model(), padded(), mask, temperature=1.0, with_entropy=True)
    assert outputs.logprobs.abs().sum() == 0
    assert outputs.entropy is not None
    assert outputs.entropy.abs().sum() == 0


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_token_outputs_refuse_a_temperature_without_distribution(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature > 0"):
        token_outputs(small_model(), padded(), MASK, temperature=temperature)


def test_token_outputs_refuse_to_train_a_rows_first_token() -> None:
    mask = MASK.clone()
    mask[1, 0] = True
    with pytest.raises(ConfigError, match="first token"):
        token_outputs(small_model(), padded(), mask, temperature=1.0)


def test_block_mask_lets_a_token_see_its_own_rows_past() -> None:
    mask = block_mask(torch.tensor([[0, 0, 1]]))
    assert mask.tolist() == [[[[True, False, False], [True, True, False], [False, False, True]]]]


def test_scorer_returns_the_hidden_states_of_each_row() -> None:
    model = small_model()
    _, entropy, hidden = TokenScorer(model)(padded(), MASK, 1.0, False)
    assert entropy is None
    alone = model.model(input_ids=torch.tensor([ROWS[1]])).last_hidden_state[0]
    torch.testing.assert_close(hidden[1, :3], alone, rtol=1e-9, atol=1e-12)
    assert math.isclose(hidden[1, 3:].abs().sum().item(), 0.0)


SMALL: dict[str, Any] = {
    "vocab_size": 13,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def wide(model: Any) -> Any:
    """Return the model with larger weights, so that its distribution is far from flat."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 8 if parameter.dim() > 1 else 1
    return model.double().eval()


def scaled_models() -> dict[str, Any]:
    torch.manual_seed(5)
    window = ["sliding_attention", "full_attention"]
    return {
        "granite": wide(GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=8.0))),
        "cohere": wide(CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25))),
        "gemma2": wide(
            Gemma2ForCausalLM(
                Gemma2Config(
                    **SMALL,
                    head_dim=8,
                    final_logit_softcapping=3.0,
                    sliding_window=2,
                    layer_types=window,
                )
            )
        ),
        "mistral": wide(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=2))),
    }


@pytest.mark.parametrize("name", ["granite", "cohere", "gemma2", "mistral"])
@pytest.mark.parametrize("layout", [padded, packed])
def test_scaled_logits_and_windows_are_the_models_own(name: str, layout: Any) -> None:
    model = scaled_models()[name]
    check_head(model)
    outputs = token_outputs(model, layout(), MASK, temperature=1.5, with_entropy=True)
    logprobs, entropy = expected(model, temperature=1.5)
    torch.testing.assert_close(outputs.logprobs, logprobs)
    torch.testing.assert_close(outputs.entropy, entropy)


def test_model_whose_logits_are_more_than_its_heads_output_is_refused() -> None:
    class Shifted(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output: Any = super().forward(*args, **kwargs)
            output.logits = output.logits * 3
            return output

    model = wide(Shifted(LlamaConfig(**SMALL)))
    with pytest.raises(ConfigError, match=r"Shifted cannot be trained.*its head"):
        check_head(model)
