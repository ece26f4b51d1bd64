"""In-process generation with any causal model of transformers, on CPU or GPU."""

from agentgym.policies.transformers.policy import TransformersPolicy

__all__ = ["TransformersPolicy"]
