"""Environments, one folder a family: id -> `module:Class [extra]`, imported by `make` only."""

if __name__ != "agentgym.envs":
    raise ImportError("import agentgym.envs, not envs: else each class exists twice")

ENVS: dict[str, str] = {}
