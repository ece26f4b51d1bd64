"""Policies on vLLM servers: ids in, ids and log-probabilities out. vLLM itself is not imported."""

from agentgym.http import Retries, ServerLostError
from agentgym.policies.vllm.connect import Address, connect, parse_address
from agentgym.policies.vllm.control import EngineControl, HttpControl
from agentgym.policies.vllm.engine_policy import EnginePolicy, Partial, Pause
from agentgym.policies.vllm.policy import VllmOptions, VllmPolicy
from agentgym.policies.vllm.server import Load, Server

__all__ = [
    "Address",
    "EngineControl",
    "EnginePolicy",
    "HttpControl",
    "Load",
    "Partial",
    "Pause",
    "Retries",
    "Server",
    "ServerLostError",
    "VllmOptions",
    "VllmPolicy",
    "connect",
    "parse_address",
]
