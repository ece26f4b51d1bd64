"""A run on disk and on the screen: `lines`, `folder`, `progress`, `plots`, `report`."""

from __future__ import annotations

from agentgym.runs.folder import RunFolder
from agentgym.runs.jsonl import DiskError, LineWriter, read_lines
from agentgym.runs.progress import ProgressSink

__all__ = ["DiskError", "LineWriter", "ProgressSink", "RunFolder", "read_lines"]
