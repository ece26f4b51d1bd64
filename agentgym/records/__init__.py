"""Records of the chain Task -> Turn -> Trajectory -> Group -> Sample: frozen, without torch.

`task` and `turn` hold the pieces, `trajectory` the episode and what is said of it, `codec` the
JSON lines.
"""

from __future__ import annotations

from agentgym.records.task import Json, Task, canonical_json
from agentgym.records.trajectory import (
    Failure,
    FinalPrompt,
    ForkPoint,
    Group,
    Sample,
    Score,
    StopReason,
    Trajectory,
)
from agentgym.records.turn import (
    Attachment,
    Completion,
    ErrorKind,
    FinishReason,
    Sampling,
    Source,
    Span,
    SpanKind,
    TokenTrace,
    ToolCall,
    ToolResult,
    Turn,
    VersionRun,
)

__all__ = [
    "Attachment",
    "Completion",
    "ErrorKind",
    "Failure",
    "FinalPrompt",
    "FinishReason",
    "ForkPoint",
    "Group",
    "Json",
    "Sample",
    "Sampling",
    "Score",
    "Source",
    "Span",
    "SpanKind",
    "StopReason",
    "Task",
    "TokenTrace",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "Turn",
    "VersionRun",
    "canonical_json",
]
