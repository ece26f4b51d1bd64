"""Environments, one folder a family."""

if __name__ != "agentgym.envs":
    raise ImportError("import agentgym.envs, not envs: else each class exists twice")
