"""Sandboxes: where programs that an agent wrote are run."""

if __name__ != "agentgym.sandbox":
    raise ImportError("import agentgym.sandbox, not sandbox: else each class exists twice")
