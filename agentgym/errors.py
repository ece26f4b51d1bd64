"""Exceptions of the public API, one subclass for each boundary.

Each is also the standard exception that it replaces, so that callers who know only Python's own
types can catch them. Typed failures of episodes are data, not exceptions: see
`agentgym.records.Failure`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentGymError(Exception):
    """Root of every error that AgentGym raises on purpose."""


class TaskError(AgentGymError, ValueError):
    """A task or a suite of tasks is not usable."""


class EnvError(AgentGymError, RuntimeError):
    """An environment was used against its contract, or breaks it."""


class ToolError(AgentGymError, RuntimeError):
    """A tool could not do what the agent asked; its message becomes the agent's observation."""


class PolicyError(AgentGymError, RuntimeError):
    """A policy could not be loaded, or answered with something unusable."""


class RenderError(AgentGymError, ValueError):
    """A conversation cannot be turned into token ids without breaking what was sampled."""


class SandboxError(AgentGymError, RuntimeError):
    """A sandbox was asked for something it cannot do."""


class ConfigError(AgentGymError, ValueError):
    """The user's input is wrong. The command line ends with exit code 2."""


class RegistryError(AgentGymError, LookupError):
    """An id is unknown, taken or malformed."""


class RecordError(AgentGymError, ValueError):
    """A record's fields contradict each other, or stored data cannot be read."""


class CheckpointError(AgentGymError, RuntimeError):
    """A checkpoint is incomplete, or does not fit the run that wants to resume from it."""


class UnusableCheckpointError(CheckpointError, ConfigError):
    """No checkpoint of a run can be resumed from, and trying again changes nothing."""


class MissingExtraError(AgentGymError, ImportError):
    """An optional package is needed; the message has the line that installs it."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional package: pip install 'agentgym-rl-kit[{extra}]'"
        )


class InfrastructureError(AgentGymError, RuntimeError):
    """Something that is not the agent's doing failed: a server, a sandbox, a browser, a disk.

    An environment or a policy raises it; the engine retries it within its bounds and then records
    it as a failure of kind `infrastructure`, which is never scored and never trained on.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name closest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
