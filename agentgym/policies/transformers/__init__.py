"""In-process generation with any causal model of transformers, on CPU or GPU.

128 episodes of `tiny` with 2 threads: 36,000 ids of all rows a second, where `model.generate` for
each turn gave 22,600 and a loop over rows in step 30,000; machine, work and the other ways are in
docs/adr/004-own-batches-in-process.md.
"""

from agentgym.policies.transformers.policy import TransformersPolicy

__all__ = ["TransformersPolicy"]
