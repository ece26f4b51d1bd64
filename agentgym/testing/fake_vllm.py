"""`FakeVllm`: a server with vLLM's endpoints, a tiny model, and faults on demand. For tests.

    async with FakeVllm(folder) as fake:
        policy = await connect(fake.url)

or, as a process with vLLM's arguments: `python -m agentgym.testing.fake_vllm --model DIR --port N`.
What it cannot do is answered with status 501, never left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from agentgym.policies.vllm.keys import VARIABLE
from agentgym.renderer.fast_tokenizer import FastTokenizer
from agentgym.testing.fake_http import Fault, FaultKind, FaultyServer, Handler, Request
from agentgym.testing.fake_model import FakeModel

BLOCK = 16
"""Ids of one block of the prefix cache."""
_MODEL = "policy"


class FakeVllm(FaultyServer):
    """A server on the loopback interface.

    Its prefix cache keeps, with each block of ids, the weights that it was computed with, and uses
    them: without a reset, or another salt, new weights do not reach what was cached.

    Args:
        folder: Model folder: a tokenizer, and weights for `FakeModel`.
        port: 0 takes a free one.
        token_s: Seconds for each sampled id.
        max_context_tokens: Prompt and completion together.
        reports_raw: Report log-probabilities before the temperature, as vLLM does untold.
        key: What every path but /health asks for; None asks for nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        token_s: float = 0.0,
        max_context_tokens: int = 4_096,
        reports_raw: bool = False,
        key: str | None = None,
    ) -> None:
        self.folder = folder
        super().__init__(port, key=key)
        self.token_s = token_s
        self.counts: Counter[str] = Counter()
        """Ids looked up and found in the prefix cache; completions cut and answered."""
        self.served_prompts: list[tuple[int, ...]] = []
        """Prompts of completions, in order of arrival."""
        self.served_salts: list[str] = []
        """Cache salts of completions, in order of arrival."""
        self._max_context_tokens = max_context_tokens
        self._reports_raw = reports_raw
        self._tokenizer = FastTokenizer.from_folder(folder)
        self._models: list[FakeModel] = [FakeModel.load(folder)]
        self._adapters: dict[str, FakeModel] = {}
        self._cache: dict[tuple[str, tuple[int, ...]], int] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._cuts = 0
        self._keeps = True
        self._live = 0
        self._born = time.time()
        self._numbers = itertools.count()

    @property
    def generation(self) -> int:
        """Changes of weights so far."""
        return len(self._models) - 1

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that are loaded, in the order of loading."""
        return tuple(self._adapters)

    def reborn(self) -> None:
        """Have the folder's weights, and nothing in the cache."""
        self._models = [FakeModel.load(self.folder)]
        self._adapters.clear()
        self._cache.clear()
        self._running.set()
        self._born = max(time.time(), self._born + 1e-3)

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        """Return what answers each method and path."""
        return {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._list_models,
            ("GET", "/is_paused"): self._is_paused,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/reset_prefix_cache"): self._reset_cache,
            ("POST", "/collective_rpc"): self._rpc,
            ("POST", "/v1/load_lora_adapter"): self._load_adapter,
            ("POST", "/v1/unload_lora_adapter"): self._unload_adapter,
            ("POST", "/fault"): self._take_fault,
        }

    # -- endpoints -----------------------------------------------------------------------------

    async def _health(self, _: Request) -> tuple[int, object]:
        return 200, None

    async def _metrics(self, _: Request) -> tuple[int, object]:
        rows = {
            "vllm:num_requests_running": self._live if self._running.is_set() else 0,
            "vllm:num_requests_waiting": 0 if self._running.is_set() else self._live,
            "vllm:kv_cache_usage_perc": min(1.0, len(self._cache) / 1e6),
            "vllm:prefix_cache_queries_total": self.counts["queries"],
            "vllm:prefix_cache_hits_total": self.counts["hits"],
        }
        lines = [f'{name}{{engine="0"}} {float(value)}' for name, value in rows.items()]
        return 200, "\n".join([*lines, f"process_start_time_seconds {self._born!r}", ""])

    async def _list_models(self, _: Request) -> tuple[int, object]:
        base: dict[str, Any] = {
            "id": _MODEL,
            "root": str(self.folder),
            "parent": None,
            "max_model_len": self._max_context_tokens,
        }
        adapters: list[dict[str, Any]] = [{"id": n, "parent": _MODEL} for n in self._adapters]
        return 200, {"object": "list", "data": [base, *adapters]}

    async def _is_paused(self, _: Request) -> tuple[int, object]:
        return 200, {"is_paused": not self._running.is_set()}

    async def _tokenize(self, request: Request) -> tuple[int, object]:
        ids = self._tokenizer.encode(str(request.body["prompt"]), allow_special=True).ids
        return 200, {"tokens": list(ids), "count": len(ids)}

    async def _pause(self, request: Request) -> tuple[int, object]:
        self._running.clear()
        self._keeps = request.params.get("mode", "abort") == "keep"
        if not self._keeps:
            self._cuts += 1
        await asyncio.sleep(0)
        if request.params.get("clear_cache", "true") == "true":
            self._cache.clear()
        return 200, {"status": "paused"}

    async def _resume(self, _: Request) -> tuple[int, object]:
        self._running.set()
        return 200, {"status": "resumed"}

    async def _reset_cache(self, _: Request) -> tuple[int, object]:
        self._cache.clear()
        return 200, {"success": True}

    async def _rpc(self, request: Request) -> tuple[int, object]:
        if request.body.get("method") != "reload_weights":
            return 501, {"error": f"no method {request.body.get('method')!r}"}
        self._models.append(FakeModel.load(Path(request.body["kwargs"]["weights_path"])))
        return 200, {"results": [None]}

    async def _load_adapter(self, request: Request) -> tuple[int, object]:
        name = request.body["lora_name"]
        if name in self._adapters:
            return 400, {"error": f"The lora adapter '{name}' has already been loaded."}
        self._adapters[name] = FakeModel.load(Path(request.body["lora_path"]))
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    async def _unload_adapter(self, request: Request) -> tuple[int, object]:
        name = request.body["lora_name"]
        if self._adapters.pop(name, None) is None:
            return 404, {"error": "no such adapter"}
        return 200, f"Success: LoRA adapter '{name}' removed successfully."

    async def _take_fault(self, request: Request) -> tuple[int, object]:
        """Take a fault over HTTP, for a server that is a process."""
        body: dict[str, Any] = dict(request.body)
        self.inject(Fault(kind=FaultKind(body.pop("kind")), **body))
        return 200, {}

    async def _complete(self, request: Request) -> tuple[int, object]:
        body = request.body
        prompt = cast("list[int]", body["prompt"])
        if body["model"] not in {_MODEL, *self._adapters}:
            return 404, {"error": f"no model {body['model']!r}"}
        if len(prompt) + int(body["max_tokens"]) > self._max_context_tokens:
            return 400, {"error": f"the context is {self._max_context_tokens}"}
        self._live += 1
        self.served_prompts.append(tuple(prompt))
        self.served_salts.append(str(body.get("cache_salt", "")))
        try:
            return 200, await self._sample(body, prompt)
        finally:
            self._live -= 1

    # -- the engine ----------------------------------------------------------------------------

    async def _sample(self, body: Mapping[str, Any], prompt: Sequence[int]) -> dict[str, Any]:
        cuts = self._cuts
        await self._running.wait()
        temperature = float(body.get("temperature", 1.0))
        rng = random.Random(body.get("seed", f"{next(self._numbers)}"))
        ends = set(cast("list[int]", body.get("stop_token_ids") or ()))
        ends |= set() if body.get("ignore_eos") else self._tokenizer.end_ids
        model = self._model_for(str(body["model"]), str(body.get("cache_salt", "")), prompt, body)
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[dict[str, float]] = []
        reason = "length"
        while len(ids) < int(body["max_tokens"]):
            await asyncio.sleep(self.token_s)
            if self._cuts != cuts:
                reason = "abort"
                break
            if not self._running.is_set():
                await self._running.wait()
                model = self._newest(str(body["model"]))
            last = ids[-1] if ids else prompt[-1]
            allowed = cast("list[int]", body.get("allowed_token_ids") or ())
            token, logprob = model.draw(last, temperature, rng, allowed)
            reported = 1.0 if self._reports_raw else temperature
            table = model.logprobs(last, reported)
            ids.append(token)
            logprobs.append(float(table[token]) if not allowed else logprob)
            best = table.argsort()[::-1][: int(body.get("logprobs") or 0)]
            tops.append({f"token_id:{i}": float(table[i]) for i in [token, *map(int, best)]})
            if token in ends or self._is_stopped(body, ids):
                reason = "stop"
                break
        # The last id was never fed to the model, so a block that it completes is not kept.
        self._remember(str(body["model"]), str(body.get("cache_salt", "")), [*prompt, *ids[:-1]])
        self.counts["cut" if reason == "abort" else "answered"] += 1
        return self._reply(body, prompt, (ids, logprobs, tops), reason)

    def _is_stopped(self, body: Mapping[str, Any], ids: Sequence[int]) -> bool:
        stops = cast("list[str]", body.get("stop") or ())
        return any(stop in self._tokenizer.decode(ids) for stop in stops)

    def _newest(self, name: str) -> FakeModel:
        return self._adapters.get(name, self._models[-1])

    def _model_for(
        self, name: str, salt: str, prompt: Sequence[int], body: Mapping[str, Any]
    ) -> FakeModel:
        """Return the weights that the prompt's last cached block was computed with."""
        if body.get("prompt_logprobs") is not None:
            return self._newest(name)  # such requests read no cache
        used = self.generation
        self.counts["queries"] += len(prompt)
        for place in _blocks(f"{name}/{salt}", prompt):
            if place in self._cache:
                self.counts["hits"] += BLOCK
                used = self._cache[place]
        self._remember(name, salt, prompt)
        return self._adapters.get(name, self._models[used])

    def _remember(self, name: str, salt: str, ids: Sequence[int]) -> None:
        for place in _blocks(f"{name}/{salt}", ids):
            self._cache.setdefault(place, self.generation)

    def _reply(
        self,
        body: Mapping[str, Any],
        prompt: Sequence[int],
        drawn: tuple[list[int], list[float], list[dict[str, float]]],
        reason: str,
    ) -> dict[str, Any]:
        ids, logprobs, tops = drawn
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": reason}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in ids],
                "token_logprobs": logprobs,
                "top_logprobs": tops,
            }
        if body.get("prompt_logprobs") is not None:
            scores = self._newest(str(body["model"])).score(prompt)
            rows = [{str(t): {"logprob": s}} for t, s in zip(prompt[1:], scores, strict=True)]
            choice["prompt_logprobs"] = [None, *rows]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}


def _blocks(key: str, ids: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    """Return where the whole blocks of a prompt are kept: by all ids up to their end."""
    return [(key, tuple(ids[:stop])) for stop in range(BLOCK, len(ids) + 1, BLOCK)]


async def _serve_process(args: argparse.Namespace) -> None:
    key = os.environ.get(VARIABLE)
    fake = FakeVllm(args.model, port=args.port, token_s=args.token_s, key=key)
    async with fake:
        await fake.ended.wait()


def main() -> None:
    """Serve until a fault ends it, or a signal."""
    parser = argparse.ArgumentParser(description="A server with vLLM's endpoints, for tests.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-s", type=float, default=0.0)
    args, _ = parser.parse_known_args()
    asyncio.run(_serve_process(args))


if __name__ == "__main__":
    main()


__all__ = ["BLOCK", "FakeVllm", "Fault", "FaultKind"]
