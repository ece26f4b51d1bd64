"""The client of vLLM servers, on the fake server: ids, log-probabilities, versions, faults."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentgym.checks.policy import check_policy
from agentgym.concurrency.limiter import LoadAware
from agentgym.errors import InfrastructureError, PolicyError
from agentgym.http import SpreadTransport
from agentgym.policies.base import GenerateRequest
from agentgym.policies.vllm import (
    Partial,
    Pause,
    Retries,
    Server,
    VllmOptions,
    VllmPolicy,
    connect,
    parse_address,
)
from agentgym.policies.vllm.gate import Gate
from agentgym.policies.vllm.wire import parse_completion, parse_scores
from agentgym.records import Completion, FinishReason, Sampling, VersionRun
from agentgym.renderer.folder import load_renderer
from agentgym.runs.load_policy import open_policy
from agentgym.testing.fake_model import FakeModel
from agentgym.testing.fake_vllm import BLOCK, FakeVllm, Fault, FaultKind

QUICK = Retries(first_wait_s=0.001, longest_wait_s=0.01)
OPTIONS = VllmOptions(retries=QUICK, patience_s=5.0)


def weights(folder: Path, target: Path, *, seed: int, scale: float = 0.4) -> Path:
    """Return a copy of a model folder whose embedding tells ids apart, by a seed."""
    shutil.copytree(folder, target)
    tensors = load_file(str(target / "model.safetensors"))
    generator = np.random.default_rng(seed)
    shape = tensors["model.embed_tokens.weight"].shape
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = (generator.standard_normal(shape) * scale).astype(np.float32)
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})
    return target


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return weights(tiny_folder, tmp_path / "model", seed=1)


@pytest.fixture
def other(tiny_folder: Path, tmp_path: Path) -> Path:
    """The same model with other weights."""
    return weights(tiny_folder, tmp_path / "other", seed=2)


@pytest.fixture
async def fake(folder: Path) -> AsyncIterator[FakeVllm]:
    async with FakeVllm(folder) as server:
        yield server


@pytest.fixture
async def policy(fake: FakeVllm) -> AsyncIterator[VllmPolicy]:
    opened = await connect(fake.url, options=OPTIONS)
    yield opened
    await opened.aclose()


def ask(
    prompt: tuple[int, ...] = (5, 6, 7), episode: str = "e", **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        episode_id=episode,
        turn=0,
        messages=(),
        prompt_ids=prompt,
        sampling=Sampling(**{"max_new_tokens": 12, "seed": 3, **sampling}),
    )


def ids_of(completion: Completion) -> tuple[int, ...]:
    assert completion.tokens is not None
    return completion.tokens.ids


def logprobs_of(completion: Completion) -> tuple[float, ...]:
    assert completion.tokens is not None
    assert completion.tokens.behavior_logprobs is not None
    return completion.tokens.behavior_logprobs


# ------------------------------------------------------------------------- ids and log-probs


async def test_client_keeps_the_contract_of_policies(fake: FakeVllm) -> None:
    report = await check_policy(await connect(fake.url, options=OPTIONS))
    assert not report.problems, str(report)


def test_fake_model_divides_logits_once_g1() -> None:
    # Logits [2, 1, 0] at T = 0.5: 4, 2, 0; e^4 / (e^4 + e^2 + 1) = 54.598 / 62.987 = 0.86681.
    model = FakeModel(
        np.ones((3, 1), np.float32), np.array([[2.0], [1.0], [0.0]], dtype=np.float32)
    )
    assert model.logprobs(0, 0.5)[0] == pytest.approx(-0.14293, abs=1e-5)
    assert model.logprobs(0)[0] == pytest.approx(-0.40761, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
async def test_logprobs_are_those_of_the_tempered_distribution_g1(
    policy: VllmPolicy, folder: Path, temperature: float
) -> None:
    answer = await policy.generate(ask(temperature=temperature))
    model = FakeModel.load(folder)
    chain = (7, *ids_of(answer))
    wanted = [model.logprobs(a, temperature)[b] for a, b in itertools.pairwise(chain)]
    assert logprobs_of(answer) == pytest.approx(wanted, abs=1e-6)


async def test_greedy_choice_is_certain(policy: VllmPolicy, folder: Path) -> None:
    answer = await policy.generate(ask(temperature=0.0, max_new_tokens=2))
    first = int(FakeModel.load(folder).logprobs(7).argmax())
    assert ids_of(answer)[0] == first
    assert logprobs_of(answer) == (0.0, 0.0)


def test_scores_are_looked_up_by_id_g3() -> None:
    # The sampled id 382 has rank 4; 13, the most likely one, stands before it.
    entry = {"13": {"logprob": -0.70, "rank": 1}, "382": {"logprob": -4.20, "rank": 4}}
    payload = {"choices": [{"prompt_logprobs": [None, entry]}]}
    assert parse_scores(payload, (9, 382)) == (-4.20,)


def test_reply_must_agree_with_the_servers_own_count_a10() -> None:
    # The server counts three ids and writes two: one was swallowed on the way.
    part = {"tokens": ["token_id:4", "token_id:5"], "token_logprobs": [-1.0, -2.0]}
    payload = {
        "choices": [{"finish_reason": "stop", "logprobs": part}],
        "usage": {"completion_tokens": 3},
    }
    with pytest.raises(PolicyError, match=r"got 2, 2, 3"):
        parse_completion(payload, is_greedy=False)
    payload["usage"] = {"completion_tokens": 2}
    assert parse_completion(payload, is_greedy=False).ids == (4, 5)
    part["tokens"][1] = "</s>"
    with pytest.raises(PolicyError, match="token_id:N"):
        parse_completion(payload, is_greedy=False)


async def test_scoring_twice_gives_the_same_for_every_id_g11(
    policy: VllmPolicy, folder: Path
) -> None:
    first = await policy.score([((5, 6), (7, 8, 9))])
    assert first == await policy.score([((5, 6), (7, 8, 9))])
    model = FakeModel.load(folder)
    wanted = [model.logprobs(a)[b] for a, b in ((6, 7), (7, 8), (8, 9))]
    assert first[0] == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(PolicyError, match="at least one prompt id"):
        await policy.score([((), (7,))])


async def test_every_end_id_of_the_renderer_ends_and_no_other(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    answers = [await policy.generate(ask(seed=seed, max_new_tokens=400)) for seed in range(6)]
    for answer in answers:
        is_end = [token in policy.renderer.end_ids for token in ids_of(answer)]
        assert not any(is_end[:-1])
        assert (answer.finish_reason is FinishReason.STOP) == is_end[-1]
    assert FinishReason.STOP in {answer.finish_reason for answer in answers}


async def test_prompt_that_fills_the_context_is_refused_before_it_is_sent(
    folder: Path,
) -> None:
    async with FakeVllm(folder, max_context_tokens=512) as fake:
        policy = await connect(fake.url, options=OPTIONS)
        sent = len(fake.served_prompts)
        with pytest.raises(PolicyError, match="context of 512"):
            await policy.generate(ask(tuple(range(5, 105)) * 6))
        assert len(fake.served_prompts) == sent
        answer = await policy.generate(ask((5,) * 510, max_new_tokens=50))
        assert len(ids_of(answer)) <= 2  # 512 - 510
        await policy.aclose()


async def test_every_turn_after_the_first_finds_the_turn_before_it_cached(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    before, prompt, wanted = fake.counts["hits"], (9,) * 40, 0
    for turn in range(4):
        answer = await policy.generate(ask(prompt, seed=turn, max_new_tokens=24))
        # Of the n ids that were fed to the model (all but the last sampled), whole blocks.
        fed = len(prompt) + len(ids_of(answer)) - 1
        prompt = (*prompt, *ids_of(answer), 5, 6, 7)
        wanted += 0 if turn == 3 else fed // BLOCK * BLOCK
    assert fake.counts["hits"] - before == wanted


async def test_salt_of_the_cache_names_the_version(policy: VllmPolicy, fake: FakeVllm) -> None:
    await policy.generate(ask())
    async with policy.change_to(7):
        pass
    await policy.generate(ask())
    first, second = fake.served_salts[-2:]
    assert (first.endswith("-0"), second.endswith("-7")) == (True, True)
    # The same within a version; another one for a run that meets the same server.
    assert policy.ask() == policy.ask()
    again = await connect(fake.url, options=OPTIONS, version=7)
    assert again.ask().cache_salt != second
    await again.aclose()


# -------------------------------------------------------------------------------- handshake


async def test_server_that_reports_before_the_temperature_is_refused_g1(folder: Path) -> None:
    async with FakeVllm(folder, reports_raw=True) as fake:
        with pytest.raises(PolicyError, match="--logprobs-mode processed_logprobs"):
            await connect(fake.url, options=OPTIONS)


async def test_server_with_another_tokenizer_is_refused_g13(fake: FakeVllm, folder: Path) -> None:
    renderer = load_renderer(folder)
    tokenizer: Any = renderer.tokenizer
    plain = tokenizer.encode

    def shifted(text: str, *, allow_special: bool) -> Any:
        # Splits where the server does not, as after a conversion that lost merges.
        return plain(text.replace("37*48", "37 *48"), allow_special=allow_special)

    tokenizer.encode = shifted
    with pytest.raises(PolicyError, match="another tokenizer"):
        await connect(fake.url, renderer=renderer, options=OPTIONS)


async def test_server_that_goes_on_after_an_end_id_is_refused_g13(
    fake: FakeVllm, folder: Path
) -> None:
    renderer = load_renderer(folder)
    tokenizer: Any = renderer.tokenizer
    tokenizer.end_ids = tokenizer.end_ids | {40}
    with pytest.raises(PolicyError, match="goes on after the end id 40"):
        await connect(fake.url, renderer=renderer, options=OPTIONS)


async def test_servers_with_different_weights_are_refused(fake: FakeVllm, other: Path) -> None:
    async with FakeVllm(other) as second:
        with pytest.raises(PolicyError, match="different weights"):
            await connect(f"{fake.url},{second.url}", options=OPTIONS)


async def test_folder_that_is_not_here_is_asked_for(fake: FakeVllm, folder: Path) -> None:
    moved = await asyncio.to_thread(folder.rename, folder.with_name("moved"))
    with pytest.raises(PolicyError, match="#FOLDER"):
        await connect(fake.url, options=OPTIONS)
    policy = await connect(f"vllm:{fake.url}#{moved}", options=OPTIONS)
    await policy.aclose()


@pytest.mark.parametrize("text", ["vllm:", "vllm:host:8000", "vllm:http://a,b", "ftp://a"])
def test_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="vllm:http://HOST:PORT"):
        parse_address(text)


def test_address_has_servers_and_a_folder() -> None:
    found = parse_address("vllm:http://a:1/, http://b:2#/m")
    assert (found.urls, found.folder) == (("http://a:1", "http://b:2"), "/m")


async def test_opened_by_name_acts_in_another_loop(fake: FakeVllm) -> None:
    # As `agentgym eval` does: opened without a loop, then used in one.
    opened = await asyncio.to_thread(open_policy, f"vllm:{fake.url}")
    assert (await opened.generate(ask())).policy_id == "vllm:policy"
    await opened.aclose()


# ----------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.CUT_SHORT])
async def test_request_whose_connection_broke_is_sent_again(
    policy: VllmPolicy, fake: FakeVllm, kind: FaultKind
) -> None:
    undisturbed = await policy.generate(ask())
    fake.inject(Fault(kind=kind, count=2))
    sent = len(fake.served_prompts)
    answer = await policy.generate(ask())
    assert answer == undisturbed
    assert policy.servers[0].broken_connections == 2
    # A reset comes before the work, a short answer after it: either way one answer counts.
    assert len(fake.served_prompts) - sent == (1 if kind is FaultKind.RESET else 3)


async def test_connection_that_breaks_every_time_is_infrastructure_h8(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    fake.inject(Fault(kind=FaultKind.RESET, count=100))
    before = fake.calls.count("/v1/completions")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        await policy.generate(ask())
    assert fake.calls.count("/v1/completions") - before == QUICK.attempts


async def test_error_of_a_server_that_is_well_is_not_repeated_h8(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    fake.inject(Fault(kind=FaultKind.ERROR))
    before = fake.calls.count("/v1/completions")
    with pytest.raises(InfrastructureError, match="500"):
        await policy.generate(ask())
    assert fake.calls.count("/v1/completions") - before == 1


async def test_error_of_a_server_that_is_ending_counts_as_its_loss(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    # As when the kernel ends an engine for want of memory: its server answers 500, then ends too.
    before = await policy.generate(ask())
    fake.inject(Fault(kind=FaultKind.ERROR))
    fake.inject(Fault(kind=FaultKind.ERROR, path="/health", count=2))
    assert await policy.generate(ask()) == before


async def test_server_that_hangs_ends_at_the_deadline(fake: FakeVllm) -> None:
    options = VllmOptions(timeout_s=0.2, retries=QUICK)
    policy = await connect(fake.url, options=options)
    fake.inject(Fault(kind=FaultKind.HANG))
    with pytest.raises(InfrastructureError, match=r"no answer within 0\.2 s"):
        await policy.generate(ask())
    assert (await policy.generate(ask())).tokens is not None
    await policy.aclose()


async def test_unknown_model_is_refused_for_good(policy: VllmPolicy) -> None:
    policy.model = "gone"
    with pytest.raises(PolicyError, match="404"):
        await policy.generate(ask())


async def test_cancelled_request_frees_its_connection(folder: Path) -> None:
    async with FakeVllm(folder, token_s=0.005) as fake:
        server = Server(fake.url, connections=1, retries=QUICK)
        policy = VllmPolicy([server], load_renderer(folder), model="policy", options=OPTIONS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await policy.generate(ask(max_new_tokens=4_000, seed=1))
        async with asyncio.timeout(5):
            await policy.generate(ask(max_new_tokens=2))
        await policy.aclose()


async def test_more_requests_than_connections_wait_their_turn(folder: Path) -> None:
    async with FakeVllm(folder, token_s=0.001) as fake:
        server = Server(fake.url, connections=3, retries=QUICK)
        policy = VllmPolicy([server], load_renderer(folder), model="policy", options=OPTIONS)
        asks = [ask(episode=f"e{i}", seed=i, max_new_tokens=4) for i in range(20)]
        answers = await asyncio.gather(*(policy.generate(one) for one in asks))
        alone = [await policy.generate(one) for one in asks]
        assert answers == alone
        transport = server._http._own
        assert isinstance(transport, SpreadTransport)
        assert len(transport._all) == 3
        await policy.aclose()


# --------------------------------------------------------------------------- several servers


async def test_episode_stays_with_its_server(fake: FakeVllm, folder: Path) -> None:
    async with FakeVllm(folder) as second:
        policy = await connect(f"{fake.url},{second.url}", options=OPTIONS)
        seen: dict[str, set[str]] = {}
        for episode in ("a", "b", "c", "d"):
            await policy.begin_episode(episode)
        for turn in range(3):
            for episode in ("a", "b", "c", "d"):
                counts = (len(fake.served_prompts), len(second.served_prompts))
                await policy.generate(ask((9, turn + 5), episode))
                where = "first" if len(fake.served_prompts) > counts[0] else "second"
                seen.setdefault(episode, set()).add(where)
        assert all(len(places) == 1 for places in seen.values())
        assert sorted(next(iter(p)) for p in seen.values()) == [
            "first",
            "first",
            "second",
            "second",
        ]
        await policy.aclose()


async def test_episodes_of_a_dead_server_move_to_another(fake: FakeVllm, folder: Path) -> None:
    async with FakeVllm(folder) as second:
        policy = await connect(f"{fake.url},{second.url}", options=OPTIONS)
        asks = [ask(episode=f"e{i}", seed=i) for i in range(6)]
        before = [await policy.generate(one) for one in asks]
        await fake.stop()
        assert [await policy.generate(one) for one in asks] == before
        await policy.aclose()


async def test_server_that_an_episode_moves_to_is_looked_at_too_g5(
    fake: FakeVllm, folder: Path, other: Path
) -> None:
    # While nobody spoke to it the second became another process, with other weights.
    async with FakeVllm(folder) as second:
        options = replace(OPTIONS, trust_s=0.0)
        policy = await connect(f"{fake.url},{second.url}", options=options)
        await policy.begin_episode("e")  # on the first
        await fake.stop()
        await second.stop()
        second.folder = other
        await second.start()
        with pytest.raises(PolicyError, match="came back with other weights"):
            await policy.generate(ask())
        assert second.served_prompts[-1] == policy.probe_ids  # scored, and never sampled
        await policy.aclose()


async def test_episode_moves_past_a_server_that_is_lost_too(fake: FakeVllm, folder: Path) -> None:
    async with FakeVllm(folder) as second, FakeVllm(folder) as third:
        options = replace(OPTIONS, trust_s=0.0)
        urls = f"{fake.url},{second.url},{third.url}"
        policy = await connect(urls, options=options)
        before = await policy.generate(ask())  # on the first
        await fake.stop()
        await second.stop()
        assert await policy.generate(ask()) == before
        assert [server.broken_connections for server in policy.servers] == [1, 1, 0]
        await policy.aclose()


async def test_dead_server_is_waited_for_and_its_episodes_go_on(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    before = await policy.generate(ask())
    fake.inject(Fault(kind=FaultKind.DIE))

    async def restart() -> None:
        await fake.ended.wait()
        await asyncio.sleep(0.1)
        await fake.start()

    answer, _ = await asyncio.gather(policy.generate(ask()), restart())
    assert answer == before


async def test_server_that_comes_back_with_other_weights_is_refused_g5(
    fake: FakeVllm, other: Path
) -> None:
    policy = await connect(fake.url, options=replace(OPTIONS, trust_s=0.0))
    await policy.generate(ask())
    await fake.stop()
    fake.folder = other
    await fake.start()
    served = len(fake.served_prompts)
    with pytest.raises(PolicyError, match="came back with other weights"):
        await policy.generate(ask())
    # It was asked to score the fixed text, and never to sample.
    assert fake.served_prompts[served:] == [policy.probe_ids]
    await policy.aclose()


async def test_server_that_stays_away_is_infrastructure(fake: FakeVllm) -> None:
    policy = await connect(fake.url, options=VllmOptions(retries=QUICK, patience_s=0.3))
    await fake.stop()
    with pytest.raises(InfrastructureError, match=r"did not come back within 0\.3 s"):
        await policy.generate(ask())
    await policy.aclose()


async def test_load_is_the_servers_own_account(policy: VllmPolicy, fake: FakeVllm) -> None:
    await policy.generate(ask((9,) * 33))
    load = await policy.servers[0].load()
    assert (load.running, load.waiting) == (0.0, 0.0)
    assert (load.prefix_queries, load.prefix_hits) == (
        fake.counts["queries"],
        fake.counts["hits"],
    )


async def test_load_of_several_servers_is_summed_and_a_lost_one_is_named(
    fake: FakeVllm, folder: Path
) -> None:
    async with FakeVllm(folder, token_s=0.01) as second:
        policy = await connect(f"{fake.url},{second.url}", options=OPTIONS)
        assert isinstance(policy, LoadAware)
        await fake.stop()
        asks = [ask(episode=f"e{i}", seed=i, max_new_tokens=60) for i in range(3)]
        work = asyncio.gather(*(policy.generate(one) for one in asks))
        async with asyncio.timeout(10):
            while (load := await policy.load()).running < 3:  # noqa: ASYNC110 - a server's count
                await asyncio.sleep(0.01)
        assert load.waiting == 0
        assert [problem for problem in load.problems if fake.url in problem]
        await work
        await second.stop()
        with pytest.raises(InfrastructureError, match="no server answers"):
            await policy.load()
        await policy.aclose()


# -------------------------------------------------------------------------- changing weights


async def _change(policy: VllmPolicy, target: Path, version: int) -> None:
    """Change the weights of all servers as vLLM's endpoints want it."""
    async with policy.change_to(version):
        for control in policy.controls:
            await control.pause()
            await control.reload(str(target))
            await control.reset_cache()
            await control.resume()


async def _generate_over_a_change(
    options: VllmOptions, folder: Path, other: Path, **sampling: Any
) -> tuple[Completion, FakeVllm]:
    async with FakeVllm(folder, token_s=0.002) as fake:
        policy = await connect(fake.url, options=options)
        asked = ask(max_new_tokens=120, **{"seed": 5, "stop": (), **sampling})
        task = asyncio.gather(policy.generate(asked), _later(policy, other))
        answer, _ = await task
        await policy.aclose()
    return answer, fake


async def _later(policy: VllmPolicy, other: Path) -> None:
    await asyncio.sleep(0.05)
    await _change(policy, other, 3)


def _endless(folder: Path) -> Any:
    """Return weights under which no end id is ever likely."""
    tensors = load_file(str(folder / "model.safetensors"))
    ends = sorted(load_renderer(folder).end_ids)
    # Every embedding gets a last channel of 1, and the heads of end ids -40 there.
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name][:, -1] = 1.0
    tensors["lm_head.weight"][ends, -1] = -40.0
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


async def test_completion_over_a_change_has_exact_versions_and_logprobs(
    folder: Path, other: Path
) -> None:
    _endless(folder)
    _endless(other)
    answer, _ = await _generate_over_a_change(OPTIONS, folder, other)
    assert answer.tokens is not None
    runs = answer.tokens.versions
    assert [run.version for run in runs] == [0, 3]
    assert len(answer.tokens.ids) == 120
    models = {0: FakeModel.load(folder), 3: FakeModel.load(other)}
    versions = [run.version for run in runs for _ in range(run.count)]
    chain = list(itertools.pairwise((7, *answer.tokens.ids)))
    wanted = [models[v].logprobs(a)[b] for v, (a, b) in zip(versions, chain, strict=True)]
    assert logprobs_of(answer) == pytest.approx(wanted, abs=1e-5)


async def test_completion_over_a_change_begins_again_where_that_is_asked_for_h4(
    folder: Path, other: Path
) -> None:
    _endless(folder)
    _endless(other)
    options = VllmOptions(retries=QUICK, partial=Partial.DROP)
    answer, _ = await _generate_over_a_change(options, folder, other)
    assert answer.tokens is not None
    assert answer.tokens.versions == (VersionRun(version=3, count=120),)
    model = FakeModel.load(other)
    wanted = [model.logprobs(a)[b] for a, b in itertools.pairwise((7, *answer.tokens.ids))]
    assert logprobs_of(answer) == pytest.approx(wanted, abs=1e-5)


async def test_frozen_completion_is_recorded_under_the_oldest_version(
    folder: Path, other: Path
) -> None:
    _endless(folder)
    _endless(other)
    options = VllmOptions(retries=QUICK, pause=Pause.FREEZE)
    answer, fake = await _generate_over_a_change(options, folder, other)
    assert answer.tokens is not None
    assert answer.tokens.versions == (VersionRun(version=0, count=120),)
    assert fake.counts["cut"] == 0


async def test_rest_of_a_cut_completion_draws_other_numbers(folder: Path) -> None:
    # The same weights before and after: were the seed the same, the ids after the cut would be
    # those of the beginning where the last id is the same; compare whole streams instead.
    _endless(folder)
    answer, fake = await _generate_over_a_change(OPTIONS, folder, folder)
    async with FakeVllm(folder) as second:
        policy = await connect(second.url, options=OPTIONS)
        whole = await policy.generate(ask(max_new_tokens=120, seed=5))
        await policy.aclose()
    assert answer.tokens is not None
    cut = answer.tokens.versions[0].count
    assert fake.counts["cut"] == 1
    assert ids_of(answer)[:cut] == ids_of(whole)[:cut]
    assert ids_of(answer)[cut:] != ids_of(whole)[cut:]


async def test_stop_string_across_a_cut_is_found(policy: VllmPolicy, fake: FakeVllm) -> None:
    renderer = policy.renderer
    left, right = renderer.encode("1"), renderer.encode("7")
    answers = iter([(left, "abort"), ((*right, *left), "length")])

    async def answer(episode_id: str, prompt: Any, sampling: Sampling) -> Any:
        from agentgym.policies.vllm.wire import Answer

        ids, reason = next(answers)
        return Answer(ids=tuple(ids), logprobs=(-1.0,) * len(ids), reason=reason)

    policy.answer = answer  # a server that cuts between the two halves of the string
    reply = await policy.generate(ask(stop=("17",)))
    assert ids_of(reply) == (*left, *right)
    assert (reply.text, reply.finish_reason) == ("17", FinishReason.STOP)


async def test_nothing_samples_after_a_change_that_failed_g5(
    policy: VllmPolicy, fake: FakeVllm
) -> None:
    with pytest.raises(RuntimeError, match="half way"):
        async with policy.change_to(1):
            raise RuntimeError("half way")
    sent = len(fake.served_prompts)
    with pytest.raises(PolicyError, match="failed change of weights: half way"):
        await policy.generate(ask())
    assert len(fake.served_prompts) == sent
    assert policy.version == 0


async def test_requests_wait_while_weights_change(policy: VllmPolicy, fake: FakeVllm) -> None:
    async with policy.change_to(4):
        task = asyncio.gather(policy.generate(ask()))
        await asyncio.sleep(0.05)
        assert not task.done()
        with pytest.raises(PolicyError, match="being changed already"):
            async with policy.change_to(5):
                pass
    (answer,) = await task
    assert answer.tokens is not None
    assert {run.version for run in answer.tokens.versions} == {4}


async def test_request_that_waited_does_not_enter_while_the_next_change_runs() -> None:
    gate = Gate(0)
    async with gate.change_to(1):
        entered = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
    async with gate.change_to(2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not entered.done()
    assert await entered == 2


async def test_cache_that_is_not_reset_gives_old_weights_g4(
    policy: VllmPolicy, fake: FakeVllm, folder: Path, other: Path
) -> None:
    # The trap itself, on the fake: the same salt, new weights, no reset.
    prompt = (9,) * (BLOCK + 1)
    server = policy.servers[0]
    body = {
        "model": "policy",
        "prompt": list(prompt),
        "max_tokens": 1,
        "logprobs": 0,
        "seed": 1,
        "cache_salt": "s",
        "ignore_eos": True,
    }

    async def sampled() -> tuple[int, float]:
        payload: Any = await server.post("/v1/completions", body, timeout_s=5, is_repeatable=False)
        answer = parse_completion(payload, is_greedy=False)
        return answer.ids[0], answer.logprobs[0]

    await sampled()
    await policy.controls[0].reload(str(other))
    token, stale = await sampled()
    assert stale == pytest.approx(FakeModel.load(folder).logprobs(9)[token], abs=1e-6)
    await policy.controls[0].reset_cache()
    token, fresh = await sampled()
    assert fresh == pytest.approx(FakeModel.load(other).logprobs(9)[token], abs=1e-6)


def test_bodies_carry_every_bound() -> None:
    # A server takes what is missing from the model's generation config.
    from agentgym.policies.vllm.wire import Ask, completion_body

    body = completion_body(
        Ask(model="policy", end_ids=(1, 4), cache_salt="agentgym-2"),
        (5, 6),
        Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.05, stop=("</a>",)),
        max_tokens=11,
        seed=None,
    )
    assert json.loads(json.dumps(body)) == {
        "model": "policy",
        "prompt": [5, 6],
        "max_tokens": 11,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "stop_token_ids": [1, 4],
        "skip_special_tokens": False,
        "cache_salt": "agentgym-2",
        "stop": ["</a>"],
        "include_stop_str_in_output": True,
    }
