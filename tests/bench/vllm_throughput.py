"""Rollout tokens a second of the client over those of the raw engine, in-process and over HTTP.

Episodes of 6 turns x 48 sampled + 32 observed tokens in an environment without latency. Baseline
of both transports: the raw engine, in-process, with the true prompts of all turns in turn order,
prefix cache on, end ids ignored: all episodes turn by turn, or each by itself, whichever is faster.

    python tests/bench/vllm_throughput.py --model /opt/smol                  # a GPU
    python tests/bench/vllm_throughput.py --model DIR --mini                 # vLLM for the CPU

Phase `http:N` is N servers that share the memory: one server speaks HTTP in one process. Phase
`front:N` is one server with N processes that speak HTTP (vLLM's `serve --api-server-count`).

Results are printed as they come, one JSON line each; every server is ended at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentgym.env.contract import TextEnv
from agentgym.policies.base import Policy
from agentgym.policies.vllm import VllmOptions, VllmPolicy, connect
from agentgym.records import Sampling, Task, Trajectory
from agentgym.records.limits import Limits
from agentgym.records.messages import Message
from agentgym.renderer.base import RenderedTurn, Renderer
from agentgym.renderer.folder import load_renderer
from agentgym.rollouts.engine import Engine, GroupSpec
from agentgym.serving.launch import (
    ServerDevice,
    ServerProcess,
    ServerSpec,
    free_port,
    log_tail,
)

TURNS, SAMPLED, OBSERVED = 6, 48, 32
BLOCK = 16
"""Ids of one block of the prefix cache: vLLM's default on a GPU. On a CPU it is 128."""


class Endless:
    """A renderer without end ids: every turn has as many sampled ids as were asked for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.end_ids: frozenset[int] = frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Silent(TextEnv):
    """Answers at once, with an observation that renders to a fixed number of ids."""

    limits = Limits(max_turns=TURNS)

    def __init__(self, observation: str) -> None:
        super().__init__()
        self._observation = observation

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return options["task"].prompt, {"task": options["task"]}

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, {"rewards": {}}

    def outcome(self) -> float:
        return 0.0


def observation_of(renderer: Renderer, count: int) -> str:
    """Return a text that adds `count` ids to the prompt, the template's own among them."""
    opening = (Message(role="user", content="begin"),)
    prompt = renderer.first_prompt(opening).ids
    sampled = renderer.encode("x " * SAMPLED)[:SAMPLED]
    text = ""
    for word in range(4 * count):
        turn = RenderedTurn(
            prompt_ids=prompt,
            sampled_ids=sampled,
            completion=renderer.decode(sampled),
            observation=Message(role="user", content=text),
        )
        got = len(renderer.next_prompt(opening, [turn]).ids)
        if got >= count:
            return text
        text += f" {word % 10}"
    raise AssertionError(f"no text renders to {count} ids")


def specs_of(count: int, first: int) -> list[GroupSpec]:
    sampling = Sampling(max_new_tokens=SAMPLED, temperature=1.0, seed=1)
    return [
        GroupSpec(
            id=f"b{number}",
            task=Task(id=f"t{number}", env_id="bench/silent-v0", prompt=f"Task {number}: go on."),
            size=1,
            seed=number,
            sampling=sampling,
            limits=Limits(max_turns=TURNS),
        )
        for number in range(first, first + count)
    ]


async def rollout(policy: Policy, episodes: int, first: int = 0) -> tuple[float, list[Trajectory]]:
    """Return seconds, and the records of all episodes."""
    assert policy.renderer is not None
    observation = observation_of(policy.renderer, OBSERVED)
    engine = Engine(policy, max_concurrent=episodes, make_env=lambda *_, **__: Silent(observation))
    async with engine:
        began = time.perf_counter()
        groups = await engine.run_groups(specs_of(episodes, first))
        seconds = time.perf_counter() - began
    return seconds, [trajectory for group in groups for trajectory in group.trajectories]


def whole_prompts(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """Return [turn] the ids of each turn's whole prompt, as it was sent."""
    full: tuple[int, ...] = ()
    prompts: list[tuple[int, ...]] = []
    for turn in trajectory.turns:
        assert turn.prompt_ids is not None
        assert turn.completion.tokens is not None
        prompts.append(full[: turn.prefix_length] + turn.prompt_ids)
        full = prompts[-1] + turn.completion.tokens.ids
    return prompts


def check(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return what the records are like; every one must be whole."""
    failures = [t.failure.message for t in trajectories if t.failure is not None]
    assert not failures, failures[:3]
    sampled = {
        len(t.completion.tokens.ids) for x in trajectories for t in x.turns if t.completion.tokens
    }
    observed = {len(t.prompt_ids or ()) for x in trajectories for t in x.turns[1:]}
    assert {len(t.turns) for t in trajectories} == {TURNS}
    assert sampled == {SAMPLED}, sampled
    return {
        "observed_ids": sorted(observed),
        "first_prompt_ids": len(trajectories[0].turns[0].prompt_ids or ()),
    }


def possible_hits(prompts: Sequence[Sequence[tuple[int, ...]]], block: int) -> tuple[int, int]:
    """Return ids of whole blocks that a turn shares with the one before it: all, and computed ones.

    The last sampled id of a turn is never fed to the model, so a block that it would complete is
    not there to be found.
    """
    shared = computed = 0
    for episode in prompts:
        for before in episode[:-1]:
            length = len(before) + SAMPLED
            shared += length // block * block
            computed += (length - 1) // block * block
    return shared, computed


# ------------------------------------------------------------------------------- in-process


KINDS: dict[str, dict[str, Any]] = {
    "_logprobs": {"logprobs": 0},
    "_logprobs_flat": {"logprobs": 0, "flat_logprobs": True},
    "": {"logprobs": None},
}
"""What the engine alone is asked for; the last is less than training needs."""


async def raw(
    engine: Any, prompts: Sequence[Sequence[tuple[int, ...]]], *, order: str, asked: str
) -> float:
    """Return tokens a second of the engine alone with true prompts."""
    vllm: Any = importlib.import_module("vllm")
    kind: Any = importlib.import_module("vllm.sampling_params").RequestOutputKind
    params = vllm.SamplingParams(
        temperature=1.0,
        max_tokens=SAMPLED,
        ignore_eos=True,
        detokenize=False,
        **KINDS[asked],
        output_kind=kind.FINAL_ONLY,
    )
    salt = f"raw-{time.time()}"

    async def one(episode: int, turn: int) -> None:
        text = {"prompt_token_ids": list(prompts[episode][turn]), "cache_salt": salt}
        async for _ in engine.generate(text, params, f"{salt}-{episode}-{turn}"):
            pass

    async def chain(episode: int) -> None:
        for turn in range(TURNS):
            await one(episode, turn)

    began = time.perf_counter()
    if order == "turns":
        for turn in range(TURNS):
            await asyncio.gather(*(one(episode, turn) for episode in range(len(prompts))))
    else:
        await asyncio.gather(*(chain(episode) for episode in range(len(prompts))))
    return len(prompts) * TURNS * SAMPLED / (time.perf_counter() - began)


def registry_sum(name: str) -> float:
    registry: Any = importlib.import_module("prometheus_client").REGISTRY
    return sum(s.value for m in registry.collect() for s in m.samples if s.name == name)


async def in_process(args: argparse.Namespace) -> dict[int, float]:
    """Measure the engine alone and our client on it; return the best figure of the engine alone."""
    from agentgym.policies.vllm.inprocess import InprocessOptions, open_inprocess

    renderer: Any = Endless(load_renderer(args.model))
    extra: dict[str, Any] = {"dtype": "float32"} if args.mini else {}
    extra |= json.loads(args.engine_options)
    began = time.perf_counter()
    policy = open_inprocess(
        args.model,
        renderer,
        options=InprocessOptions(
            max_rows=max(args.episodes),
            is_seeded=False,
            is_eager=args.mini,
            gpu_memory_utilization=args.gpu_memory,
            max_context_tokens=args.context,
            extra=extra,
        ),
    )
    say(phase="inprocess", ready_s=time.perf_counter() - began)
    best: dict[int, float] = {}
    try:
        await rollout(policy, min(args.episodes), 10**6)  # warm
        for episodes in args.episodes:
            rates: list[float] = []
            hits, records = 0.0, list[Trajectory]()
            for repeat in range(args.repeats):
                before = registry_sum("vllm:prefix_cache_hits_total")
                seconds, records = await rollout(policy, episodes, 1_000 * repeat)
                hits = registry_sum("vllm:prefix_cache_hits_total") - before
                rates.append(episodes * TURNS * SAMPLED / seconds)
            shape = check(records)
            prompts = [whole_prompts(t) for t in records]
            raws: dict[str, float] = {}
            for order in ("turns", "chains"):
                for asked in KINDS:
                    raws[order + asked] = max(
                        [
                            await raw(policy.engine, prompts, order=order, asked=asked)
                            for _ in range(args.raw_repeats)
                        ]
                    )
            with_logprobs = max(value for name, value in raws.items() if "logprobs" in name)
            best[episodes] = with_logprobs
            shared, computed = possible_hits(prompts, args.block)
            say(
                phase="inprocess",
                episodes=episodes,
                tokens_per_s=max(rates),
                all_tokens_per_s=[round(rate) for rate in rates],
                raw=raws,
                ratio=max(rates) / with_logprobs,
                ratio_to_raw_without_logprobs=max(rates) / max(raws.values()),
                hits=hits,
                hits_of_shared=hits / shared if shared else None,
                hits_of_computed=hits / computed if computed else None,
                **shape,
            )
    finally:
        await policy.aclose()
    return best


# ------------------------------------------------------------------------------------- HTTP


async def client(args: argparse.Namespace) -> None:
    """Be one client process: connect, wait for a line on the standard input, run, report."""
    options = VllmOptions(is_seeded=False)
    renderer: Any = Endless(load_renderer(args.model))
    policy: VllmPolicy = await connect(args.client, renderer=renderer, options=options)
    count, first = (int(part) for part in args.share.split(":"))
    await rollout(policy, min(count, 8), 10**6 + first)
    print("ready", flush=True)
    sys.stdin.readline()
    broken = sum(server.broken_connections for server in policy.servers)
    cpu = time.process_time()
    began = time.time()
    _, records = await rollout(policy, count, first)
    ended = time.time()
    cpu = time.process_time() - cpu
    shape = check(records)
    shared, computed = possible_hits([whole_prompts(t) for t in records], args.block)
    await policy.aclose()
    row = {
        "began": began,
        "ended": ended,
        "cpu_s": cpu,
        "broken": sum(s.broken_connections for s in policy.servers) - broken,
        "shared": shared,
        "computed": computed,
        **shape,
    }
    print(json.dumps(row), flush=True)


def run_clients(
    args: argparse.Namespace, url: str, episodes: int, processes: int
) -> dict[str, Any]:
    """Run the episodes from several processes at once and return what came of it."""
    share = episodes // processes
    command = [sys.executable, __file__, "--model", str(args.model), "--client", url]
    command += ["--block", str(args.block)]
    running = [
        subprocess.Popen(
            [*command, "--share", f"{share}:{share * index}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line == "ready", f"a client process did not start (got {line!r})"
        load = asyncio.run(server_load(url))
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        rows = []
        for process in running:
            assert process.stdout is not None
            rows.append(json.loads(process.stdout.readline()))
            process.wait(30)
    finally:
        for process in running:
            process.kill()
            process.wait()
    after = asyncio.run(server_load(url))
    seconds = max(row["ended"] for row in rows) - min(row["began"] for row in rows)
    hits = after - load
    return {
        "tokens_per_s": share * processes * TURNS * SAMPLED / seconds,
        "broken_connections": sum(row["broken"] for row in rows),
        "client_cpu_share": max(row["cpu_s"] for row in rows) / seconds,
        "hits_of_shared": hits / max(sum(row["shared"] for row in rows), 1),
        "hits_of_computed": hits / max(sum(row["computed"] for row in rows), 1),
    }


async def server_load(urls: str) -> float:
    from agentgym.policies.vllm import Server

    hits = 0.0
    for url in urls.split(","):
        server = Server(url)
        try:
            hits += (await server.load()).prefix_hits
        finally:
            await server.aclose()
    return hits


def http(args: argparse.Namespace, kind: str, count: int, best: dict[int, float]) -> None:
    """Measure our client through HTTP servers on one GPU, by number of client processes."""
    specs = front_spec(args, count) if kind == "front" else server_specs(args, count)
    with servers(args, specs) as url:
        for episodes in args.episodes:
            for processes in args.clients:
                if processes > episodes:
                    continue
                row = run_clients(args, url, episodes, processes)
                ratio = row["tokens_per_s"] / best[episodes] if best.get(episodes) else None
                say(
                    phase=kind,
                    processes=count,
                    clients=processes,
                    episodes=episodes,
                    ratio=ratio,
                    **row,
                )


def spec_of(args: argparse.Namespace, folder: Path, **own: Any) -> ServerSpec:
    """Return a server of the model, on a free port."""
    port = free_port()
    settings: dict[str, Any] = {
        "folder": args.model,
        "port": port,
        "log": folder / f"server-{port}.log",
        "python": args.server_python,
        "device": ServerDevice.CPU if args.mini else ServerDevice.CUDA,
        "max_context_tokens": args.context,
        "max_rows": max(args.episodes),
        "gpu_memory": args.gpu_memory,
        "is_eager": args.mini,
    }
    return ServerSpec(**settings | own)


def server_specs(args: argparse.Namespace, count: int) -> list[ServerSpec]:
    """Return servers that share the GPU's memory."""
    folder = Path(tempfile.mkdtemp(prefix="agentgym-bench-"))
    # The size of the cache is given: measuring the memory that is free would make servers that
    # start at once fail each other.
    size = str(int(args.cache_gib * 2**30 / count))
    extra = () if args.mini or count == 1 else ("--kv-cache-memory-bytes", size)
    share = args.gpu_memory / count
    return [spec_of(args, folder, gpu_memory=share, extra=extra) for _ in range(count)]


def front_spec(args: argparse.Namespace, count: int) -> list[ServerSpec]:
    """Return one server with several processes that speak HTTP."""
    folder = Path(tempfile.mkdtemp(prefix="agentgym-bench-"))
    extra = ("--api-server-count", str(count))
    return [spec_of(args, folder, module="vllm_serve", extra=extra)]


@contextmanager
def servers(args: argparse.Namespace, specs: Sequence[ServerSpec]) -> Iterator[str]:
    """Start servers and yield their addresses, with commas between."""
    began = time.perf_counter()
    running: list[ServerProcess] = []
    try:
        running += [ServerProcess(spec) for spec in specs]
        for process in running:
            process.wait_ready(timeout_s=240)
        say(servers=len(running), ready_s=time.perf_counter() - began)
        yield ",".join(process.spec.url for process in running)
    except BaseException:
        for process in running:
            print(log_tail(process.spec.log), file=sys.stderr, flush=True)
        raise
    finally:
        for process in running:
            process.stop()


def say(**row: Any) -> None:
    """Print one result at once."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(rounded), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--phases", default="inprocess,front:4,http:1,http:4")
    parser.add_argument("--episodes", default="64,256,512")
    parser.add_argument("--clients", default="1,4,8")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--raw-repeats", type=int, default=1)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--gpu-memory", type=float, default=0.4)
    parser.add_argument("--cache-gib", type=float, default=24.0, help="of several servers together")
    parser.add_argument("--block", type=int, default=BLOCK)
    parser.add_argument("--baseline", default="", help="EPISODES=TOKENS_PER_S,… of an earlier call")
    parser.add_argument("--engine-options", default="{}", help="JSON: further engine arguments")
    parser.add_argument("--server-python", default=sys.executable)
    parser.add_argument("--mini", action="store_true", help="vLLM for the CPU, few episodes")
    parser.add_argument("--client", default="")
    parser.add_argument("--share", default="")
    args = parser.parse_args()
    if args.model is None:
        print("skipped: give --model FOLDER, and --mini without a GPU")
        sys.exit(0)
    args.episodes = [int(part) for part in args.episodes.split(",")]
    args.clients = [int(part) for part in args.clients.split(",")]
    return args


def main() -> None:
    args = parsed()
    if args.client:
        asyncio.run(client(args))
        return
    best = {
        int(k): float(v)
        for k, _, v in (part.partition("=") for part in args.baseline.split(",") if part)
    }
    for phase in args.phases.split(","):
        name, _, number = phase.partition(":")
        try:
            if name == "inprocess":
                best |= asyncio.run(in_process(args))
            else:
                http(args, name, int(number or 1), best)
        except Exception as error:  # the other phases are worth their time all the same
            say(phase=phase, failed=f"{type(error).__name__}: {error}"[:800])


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Servers with several processes for HTTP are started by a module of their own.
    paths = [str(Path(__file__).parent / "lib"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    main()
