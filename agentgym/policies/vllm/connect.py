"""From `vllm:URL` to a policy that is known to fit: `parse_address`, `connect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import PolicyError
from agentgym.policies.vllm.handshake import describe, shake_hands
from agentgym.policies.vllm.policy import VllmOptions, VllmPolicy
from agentgym.policies.vllm.server import Server
from agentgym.renderer.base import History, Renderer
from agentgym.renderer.folder import load_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a policy's servers are, and where its model folder is.

    Example:
        Address(urls=("http://127.0.0.1:8000",), folder="/models/smol")
    """

    urls: tuple[str, ...]
    """One or more, without a path."""
    folder: str | None = None
    """Model folder on this machine; None takes what the servers say that they serve."""


def parse_address(text: str) -> Address:
    """Return the parts of `vllm:URL[,URL…][#FOLDER]`; the leading `vllm:` may be missing.

    Raises:
        PolicyError: If an address does not begin with http:// or https://.
    """
    urls, _, folder = text.removeprefix("vllm:").partition("#")
    listed = tuple(url.strip().rstrip("/") for url in urls.split(",") if url.strip())
    wrong = [url for url in listed if not url.startswith(("http://", "https://"))]
    if wrong or not listed:
        raise PolicyError(
            "vLLM servers are written vllm:http://HOST:PORT, several with commas between, then "
            f"#FOLDER where the model's folder has another name here (got {text!r})"
        )
    return Address(urls=listed, folder=folder or None)


async def connect(
    address: Address | str,
    *,
    renderer: Renderer | None = None,
    history: History = History.VERBATIM,
    model: str | None = None,
    version: int = 0,
    options: VllmOptions | None = None,
    name: Callable[[Address], str] | None = None,
) -> VllmPolicy:
    """Return a policy of servers that answer, serve one model, and mean by ids what it means.

    Args:
        address: Where they are.
        renderer: Of the model; None loads it from the model folder.
        history: How earlier turns enter the next prompt, where the renderer is loaded here.
        model: Which of a server's models; None takes the only one.
        version: Learner updates behind their weights.
        options: Deadlines, retries, seeds.
        name: Makes the policy's name for records.

    Raises:
        InfrastructureError: If a server cannot be reached.
        PolicyError: If one does not fit, with the reason.
    """
    place = parse_address(address) if isinstance(address, str) else address
    retries = options.retries if options is not None else None
    servers = [Server(url, retries=retries) for url in place.urls]
    try:
        facts = [await describe(server, model=model) for server in servers]
        if len({fact.model for fact in facts}) > 1:
            names = [fact.model for fact in facts]
            raise PolicyError(f"the servers serve different models (got {names!r})")
        lengths = [f.max_context_tokens for f in facts if f.max_context_tokens is not None]
        policy = VllmPolicy(
            servers,
            renderer or load_renderer(_folder(place, facts[0].folder), history=history),
            model=facts[0].model,
            policy_id=name(place) if name is not None else f"vllm:{facts[0].model}",
            version=version,
            max_context_tokens=min(lengths, default=None),
            options=options,
        )
        for server in servers:
            await shake_hands(server, policy.ask(), policy.renderer)
        await policy.remember()
    except BaseException:
        for server in servers:
            await server.aclose()
        raise
    return policy


def model_folder_of(address: Address, served: str) -> Path:
    """Return the model folder on this machine.

    Raises:
        PolicyError: If there is none.
    """
    return _folder(address, served)


def _folder(address: Address, served: str) -> Path:
    folder = Path(address.folder if address.folder is not None else served).expanduser()
    if not (folder / "config.json").is_file():
        raise PolicyError(
            f"the model folder {str(folder)!r} is not on this machine; name one that is: "
            f"vllm:{','.join(address.urls)}#FOLDER"
        )
    return folder


__all__ = ["Address", "connect", "model_folder_of", "parse_address"]
