"""In-process generation: batching, kept keys, log-probabilities, weights, cancellation."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    Gemma2Config,
    GPT2Config,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
)

from agentgym.checks.policy import check_policy
from agentgym.errors import PolicyError
from agentgym.policies.base import GenerateRequest
from agentgym.policies.transformers import TransformersPolicy
from agentgym.records import Completion, FinishReason, Sampling, VersionRun
from agentgym.records.messages import Message
from agentgym.renderer.chat import ChatRenderer
from agentgym.renderer.folder import load_renderer

MakeModel = Callable[[], Any]


@pytest.fixture
def renderer(tiny_folder: Path) -> ChatRenderer:
    return load_renderer(tiny_folder)


def request(
    episode: str, prompt: Sequence[int], sampling: Sampling | None = None, turn: int = 0
) -> GenerateRequest:
    return GenerateRequest(
        episode_id=episode,
        turn=turn,
        messages=(),
        prompt_ids=tuple(prompt),
        sampling=sampling if sampling is not None else Sampling(max_new_tokens=12, seed=5),
    )


def ids_of(completion: Completion) -> tuple[int, ...]:
    assert completion.tokens is not None
    return completion.tokens.ids


def logprobs_of(completion: Completion) -> tuple[float, ...]:
    assert completion.tokens is not None
    assert completion.tokens.behavior_logprobs is not None
    return completion.tokens.behavior_logprobs


def plain_logprobs(
    model: Any, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Return the log-probabilities of a plain forward over one row, nothing cached or padded."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0].float() / temperature
    logprobs = logits.log_softmax(-1)
    return [logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(sampled)]


async def play(
    policy: TransformersPolicy, episode: str, turns: int, sampling: Sampling, step: int = 3
) -> list[tuple[tuple[int, ...], Completion]]:
    """Play turns whose observation is a few fixed ids; return each prompt with its answer."""
    await policy.begin_episode(episode)
    offset = sum(map(ord, episode))
    prompt = tuple(20 + (offset + i) % 200 for i in range(4 + offset % 7))
    played: list[tuple[tuple[int, ...], Completion]] = []
    for turn in range(turns):
        seeded = Sampling(
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_new_tokens,
            seed=offset * 100 + turn,
        )
        answer = await policy.generate(request(episode, prompt, seeded, turn))
        played.append((prompt, answer))
        observed = tuple(30 + (offset * turn + i) % 200 for i in range(step + offset % 3))
        prompt = prompt + ids_of(answer) + observed
    await policy.end_episode(episode)
    return played


async def test_policy_keeps_the_contract(load_tiny: MakeModel, renderer: ChatRenderer) -> None:
    for deterministic in (False, True):
        policy = TransformersPolicy(load_tiny(), renderer, deterministic=deterministic)
        report = await check_policy(policy)
        assert not report.problems, str(report)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
async def test_logprobs_are_those_of_a_plain_forward_g1_g10(
    load_tiny: MakeModel, renderer: ChatRenderer, temperature: float
) -> None:
    # 9 episodes of unequal lengths, 3 turns each: rows join, leave, are padded and moved.
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    sampling = Sampling(temperature=temperature, max_new_tokens=17)
    played = await asyncio.gather(*(play(policy, f"episode-{i}", 3, sampling) for i in range(9)))
    await policy.aclose()
    differences = [
        abs(a - b)
        for episode in played
        for prompt, answer in episode
        for a, b in zip(
            logprobs_of(answer),
            plain_logprobs(model, prompt, ids_of(answer), temperature),
            strict=True,
        )
    ]
    assert len(differences) > 200
    assert max(differences) < 1e-4


async def test_an_episode_is_the_same_alone_and_in_company(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    policy = TransformersPolicy(load_tiny(), renderer)
    sampling = Sampling(max_new_tokens=15)
    alone = await play(policy, "episode-4", 3, sampling)
    together = await asyncio.gather(*(play(policy, f"episode-{i}", 3, sampling) for i in range(8)))
    await policy.aclose()
    assert [ids_of(a) for _, a in alone] == [ids_of(a) for _, a in together[4]]


async def test_shorter_and_changed_prompts_reuse_only_what_is_shared(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    # As a template that drops reasoning does: the second prompt leaves the first one early.
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    await policy.begin_episode("e")
    first = tuple(range(40, 60))
    for prompt in (first, (*first[:7], 90, 91), first[:5], (*first[:5], 77), first, first):
        answer = await policy.generate(request("e", prompt))
        expected = plain_logprobs(model, prompt, ids_of(answer))
        assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)
    await policy.aclose()


async def test_siblings_share_the_forward_of_their_prompt(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    written: list[int] = []
    extend = policy._runner.extend

    def count(store: Any, first: int, tokens: Sequence[Sequence[int]], starts: Any) -> None:
        written.append(sum(map(len, tokens)))
        extend(store, first, tokens, starts)

    policy._runner.extend = count
    prompt = tuple(range(40, 61))
    policy.pause()
    calls = [
        asyncio.ensure_future(
            policy.generate(request(f"s{i}", prompt, Sampling(max_new_tokens=6, seed=i)))
        )
        for i in range(5)
    ]
    await asyncio.sleep(0)
    policy.resume()
    answers = await asyncio.gather(*calls)
    await policy.aclose()
    assert sum(written) == 20  # 21 ids, the last of which is fed with the first decode step
    assert len({ids_of(answer) for answer in answers}) > 1
    for answer in answers:
        expected = plain_logprobs(model, prompt, ids_of(answer))
        assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)


async def test_long_prompts_are_written_in_pieces(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer, prefill_tokens=16)
    prompts = [tuple(30 + (i * k) % 200 for i in range(1, 8 * k + 3)) for k in range(1, 6)]
    answers = await asyncio.gather(
        *(policy.generate(request(f"e{i}", prompt)) for i, prompt in enumerate(prompts))
    )
    await policy.aclose()
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = plain_logprobs(model, prompt, ids_of(answer))
        assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)


async def test_more_episodes_than_rows_take_turns(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer, max_rows=3)
    played = await asyncio.gather(
        *(play(policy, f"r{i}", 3, Sampling(max_new_tokens=9)) for i in range(8))
    )
    await policy.aclose()
    for episode in played:
        for prompt, answer in episode:
            expected = plain_logprobs(model, prompt, ids_of(answer))
            assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)


async def test_stop_string_ends_a_turn_and_is_kept(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    # Whatever is sampled under this seed, its fourth to sixth characters become the stop string.
    policy = TransformersPolicy(load_tiny(), renderer)
    free = await policy.generate(request("a", range(40, 50), Sampling(max_new_tokens=40, seed=2)))
    stop = free.text[3:6]
    assert len(stop) == 3
    held = await policy.generate(
        request("b", range(40, 50), Sampling(max_new_tokens=40, seed=2, stop=("never", stop)))
    )
    await policy.aclose()
    assert held.finish_reason is FinishReason.STOP
    assert stop in held.text
    ids = ids_of(held)
    assert ids == ids_of(free)[: len(ids)]
    assert stop not in renderer.decode(ids[:-1])


async def test_bounds_say_length_and_ends_say_stop_b4_b6(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    policy = TransformersPolicy(load_tiny(), renderer, max_context_tokens=30)
    short = await policy.generate(request("a", range(40, 50), Sampling(max_new_tokens=3, seed=1)))
    assert (short.finish_reason, len(ids_of(short))) == (FinishReason.LENGTH, 3)
    full = await policy.generate(request("b", range(40, 65), Sampling(max_new_tokens=99, seed=1)))
    assert len(ids_of(full)) <= 5
    with pytest.raises(PolicyError, match="must leave room"):
        await policy.generate(request("c", range(40, 70)))
    await policy.aclose()


async def test_any_end_id_means_stop_b4(load_tiny: MakeModel, renderer: ChatRenderer) -> None:
    # A bias makes one of two end ids certain; the other is the tokenizer's own.
    class TwoEnds:
        def __init__(self) -> None:
            self.end_ids = frozenset({7, 9})

        def __getattr__(self, name: str) -> Any:
            return getattr(renderer, name)

    model = load_tiny()
    with torch.no_grad():
        head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
        head.weight.zero_()
        head.bias.fill_(-100.0)
        head.bias[7] = 100.0
    model.lm_head = head
    policy = TransformersPolicy(model, TwoEnds())  # type: ignore[arg-type]
    answer = await policy.generate(request("a", range(40, 50)))
    await policy.aclose()
    assert (ids_of(answer), answer.finish_reason) == ((7,), FinishReason.STOP)


async def test_new_weights_drop_kept_keys_g4_g6(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    await policy.begin_episode("e")
    prompt = tuple(range(40, 60))
    old = await policy.generate(request("e", prompt))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.ones_like(parameter))
    await policy.update_weights(dict(other.state_dict()), version=4)
    new = await policy.generate(request("e", prompt))
    await policy.aclose()
    assert logprobs_of(new) == pytest.approx(plain_logprobs(other, prompt, ids_of(new)), abs=1e-4)
    assert logprobs_of(new) != pytest.approx(logprobs_of(old), abs=1e-2)
    assert policy.version == 4
    assert new.tokens is not None
    assert new.tokens.versions == (VersionRun(version=4, count=len(ids_of(new))),)


async def test_shared_module_needs_only_the_version(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer, version=2)
    prompt = tuple(range(40, 60))
    await policy.begin_episode("e")
    await policy.generate(request("e", prompt))
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    await policy.update_weights(model, version=3)
    answer = await policy.generate(request("e", prompt))
    await policy.aclose()
    expected = plain_logprobs(model, prompt, ids_of(answer))
    assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)


async def test_weights_that_change_in_the_middle_are_stamped_by_token(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    decode = policy._runner.decode
    steps = 0

    def after_three(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            policy.post_weights(None, version=1)
        return decode(*arguments)

    policy._runner.decode = after_three  # type: ignore[method-assign]
    prompt = tuple(range(40, 50))
    answer = await policy.generate(request("e", prompt, Sampling(max_new_tokens=8, seed=11)))
    await policy.aclose()
    assert answer.tokens is not None
    runs = answer.tokens.versions
    assert [run.version for run in runs] == [0, 1]
    assert runs[0].count == 3
    # The keys were dropped and written again; the episode goes on where it was.
    expected = plain_logprobs(model, prompt, ids_of(answer))
    assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {**w, "extra": torch.zeros(1)}, "unknown"),
        (lambda w: {}, "missing"),
        (lambda w: {n: t for n, t in w.items() if "layers.1.mlp.up" not in n}, "missing"),
        (lambda w: {n: t[..., :2] for n, t in w.items()}, "another shape"),
    ],
)
async def test_weights_that_do_not_fit_change_nothing_g6_g7(
    load_tiny: MakeModel, renderer: ChatRenderer, change: Any, message: str
) -> None:
    model = load_tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    policy = TransformersPolicy(model, renderer, version=1)
    doubled = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    with pytest.raises(PolicyError, match=message):
        await policy.update_weights(change(doubled), version=2)
    await policy.aclose()
    assert policy.version == 1
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


async def test_tied_head_may_be_left_out_g7(load_tiny: MakeModel, renderer: ChatRenderer) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    tied = {n: t * 2 for n, t in model.state_dict().items() if n != "lm_head.weight"}
    await policy.update_weights(tied, version=1)
    await policy.aclose()
    assert torch.equal(model.lm_head.weight, tied["model.embed_tokens.weight"])


async def test_scores_are_those_of_a_plain_forward_g11(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    pairs = [
        (tuple(range(40, 40 + n)), tuple(range(60, 60 + m)))
        for n, m in ((5, 3), (1, 4), (17, 1), (6, 0))
    ]
    scores = await policy.score(pairs)
    again = await policy.score(pairs)
    assert scores == again
    assert [len(row) for row in scores] == [3, 4, 1, 0]
    for (prompt, target), row in zip(pairs, scores, strict=True):
        assert row == pytest.approx(plain_logprobs(model, prompt, target), abs=1e-4)
    with pytest.raises(PolicyError, match="at least one prompt id"):
        await policy.score([((), (1,))])
    assert await policy.score([]) == ()
    await policy.aclose()


async def test_cancelled_call_frees_its_row_and_leaves_others(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    model = load_tiny()
    policy = TransformersPolicy(model, renderer)
    long = Sampling(max_new_tokens=1_500, seed=3, stop=())
    hanging = asyncio.ensure_future(policy.generate(request("x", range(40, 50), long)))
    await policy.generate(request("y", range(40, 50)))
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    answer = await policy.generate(request("z", range(50, 60)))
    expected = plain_logprobs(model, range(50, 60), ids_of(answer))
    assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)
    assert await asyncio.wrap_future(policy._worker.call(lambda: policy._batcher.jobs)) == ()
    await policy.aclose()


async def test_closing_fails_what_still_runs(load_tiny: MakeModel, renderer: ChatRenderer) -> None:
    policy = TransformersPolicy(load_tiny(), renderer)
    policy.pause()
    waiting = asyncio.ensure_future(policy.generate(request("x", range(40, 50))))
    await asyncio.sleep(0)
    await policy.aclose()
    with pytest.raises(PolicyError, match="closed"):
        await waiting
    with pytest.raises(PolicyError, match="closed"):
        await policy.generate(request("y", range(40, 50)))


async def test_failed_forward_fails_its_calls_and_no_others(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    policy = TransformersPolicy(load_tiny(), renderer)
    decode = policy._runner.decode

    def broken(*arguments: Any) -> Any:
        policy._runner.decode = decode
        raise RuntimeError("out of memory")

    policy._runner.decode = broken  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match="out of memory"):
        await policy.generate(request("x", range(40, 50)))
    assert ids_of(await policy.generate(request("x", range(40, 50))))
    await policy.aclose()


async def test_one_episode_cannot_ask_twice_at_once(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    policy = TransformersPolicy(load_tiny(), renderer)
    policy.pause()
    first = asyncio.ensure_future(policy.generate(request("x", range(40, 50))))
    second = asyncio.ensure_future(policy.generate(request("x", range(40, 50))))
    await asyncio.sleep(0)
    policy.resume()
    results = await asyncio.gather(first, second, return_exceptions=True)
    await policy.aclose()
    assert [isinstance(result, PolicyError) for result in results] == [False, True]


@pytest.mark.parametrize("arrival", [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3)])
async def test_deterministic_results_do_not_depend_on_who_asks_first(
    load_tiny: MakeModel, renderer: ChatRenderer, arrival: tuple[int, ...]
) -> None:
    async def run(order: Sequence[int]) -> dict[int, Any]:
        policy = TransformersPolicy(load_tiny(), renderer, deterministic=True)
        for index in range(5):
            await policy.begin_episode(f"d{index}")
        sampling = Sampling(max_new_tokens=14)
        played = await asyncio.gather(
            *(play(policy, f"d{index}", 3 + index % 2, sampling) for index in order)
        )
        await policy.aclose()
        return {
            index: [(ids_of(a), logprobs_of(a)) for _, a in episode]
            for index, episode in zip(order, played, strict=True)
        }

    # Bit for bit, log-probabilities included.
    assert await run(range(5)) == await run(arrival)


async def test_requests_without_a_seed_draw_from_the_policys_stream(
    load_tiny: MakeModel, renderer: ChatRenderer
) -> None:
    async def run(seed: int) -> list[tuple[int, ...]]:
        policy = TransformersPolicy(load_tiny(), renderer, seed=seed)
        free = Sampling(max_new_tokens=10)
        found = [ids_of(await policy.generate(request("e", range(40, 50), free))) for _ in "ab"]
        await policy.aclose()
        return found

    first = await run(1)
    assert first == await run(1)
    assert first != await run(2)
    assert first[0] != first[1]


TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
OTHERS: dict[str, PretrainedConfig] = {
    "learned positions": GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=96, n_inner=48
    ),
    "grouped queries": Qwen3Config(**TEXT, num_key_value_heads=2, head_dim=8),
    "sliding window": MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=6),
    "two kinds of layers, capped logits": Gemma2Config(
        **TEXT,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=6,
        final_logit_softcapping=3.0,
        attn_logit_softcapping=None,
    ),
    "scaled logits": Cohere2Config(
        **TEXT, num_key_value_heads=2, sliding_window=6, logit_scale=0.25
    ),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_other_architectures_give_their_own_logprobs(
    renderer: ChatRenderer, name: str
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(OTHERS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # an untrained model is too flat to tell one place from another
    policy = TransformersPolicy(model, renderer)
    assert policy._runner.has_own_head
    played = await asyncio.gather(
        *(play(policy, f"o{i}", 2, Sampling(max_new_tokens=11)) for i in range(5))
    )
    scored = await policy.score([(p, ids_of(a)) for episode in played for p, a in episode])
    await policy.aclose()
    rows = [(p, a) for episode in played for p, a in episode]
    for (prompt, answer), score in zip(rows, scored, strict=True):
        expected = plain_logprobs(model, prompt, ids_of(answer))
        assert logprobs_of(answer) == pytest.approx(expected, abs=1e-4)
        assert score == pytest.approx(expected, abs=1e-4)


def test_models_without_keys_and_values_are_refused(renderer: ChatRenderer) -> None:
    model = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(PolicyError, match="serve this model with vLLM"):
        TransformersPolicy(model, renderer)


async def test_prompts_need_ids(load_tiny: MakeModel, renderer: ChatRenderer) -> None:
    policy = TransformersPolicy(load_tiny(), renderer)
    for ids in (None, ()):
        with pytest.raises(PolicyError, match="generates from ids"):
            await policy.generate(
                GenerateRequest(
                    episode_id="e",
                    turn=0,
                    messages=(Message(role="user", content="hello"),),
                    prompt_ids=ids,
                    sampling=Sampling(),
                )
            )
    await policy.aclose()
