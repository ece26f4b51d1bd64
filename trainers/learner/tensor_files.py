"""The tensors of a checkpoint, written and read by torch without running what a file says.

torch keeps the index of a distributed checkpoint as a pickle, and values that are no tensors, such
as a learning rate, as others. Here both are read with a short list of classes
(`docs/adr/012-checkpoints-are-data.md`).
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.metadata import StorageMeta

from agentgym.errors import UnusableCheckpointError

dcp: Any = torch.distributed.checkpoint
"""Its functions are public, though its stubs do not say so."""

_CLASSES = frozenset(
    {
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
                *("StorageMeta", "TensorProperties", "TensorStorageMetadata"),
                "_MEM_FORMAT_ENCODING",
            )
        ),
    }
)
"""What the index of a checkpoint is made of, beside `torch`'s number formats."""


def save_tensors(tensors: dict[str, Any], folder: Path, *, alone: bool) -> None:
    """Write tensors, each rank its own, and wait until they are on the disk.

    Args:
        tensors: What `load_tensors` gives back, nested by name.
        folder: Where to.
        alone: Whether this is the only process.
    """
    with _alone_is_no_news():
        dcp.save(tensors, checkpoint_id=str(folder), no_dist=alone)


def load_tensors(tensors: dict[str, Any], folder: Path, *, alone: bool) -> None:
    """Read tensors in place.

    Raises:
        UnusableCheckpointError: If they are not there, are of other shapes, or the files hold
            something else than data.
    """
    try:
        with _alone_is_no_news():
            dcp.load(
                tensors, storage_reader=_DataReader(str(folder)), planner=_DataPlanner(),
                no_dist=alone,
            )  # fmt: skip
    except dcp.api.CheckpointException as error:
        # torch prints the traceback of each rank; what one of them raised says why.
        reason = " ".join(str(next(iter(error.failures.values()))[0]).split())[:300]
        raise UnusableCheckpointError(f"{folder.parent} does not fit this run: {reason}") from error
    except (OSError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UnusableCheckpointError(f"{folder.parent} does not fit this run: {reason}") from error


class _IndexUnpickler(pickle.Unpickler):
    """Makes the classes of `_CLASSES`, and none else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return a class by name.

        Raises:
            pickle.UnpicklingError: If it is not on the list.
        """
        is_listed = (module_name, global_name) in _CLASSES
        is_format = module_name == "torch" and isinstance(
            getattr(torch, global_name, None), torch.dtype
        )
        if is_listed or is_format:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(
            f"its index asks for {module_name}.{global_name}, which could run code"
        )


class _DataReader(dcp.FileSystemReader):
    """Reads the index with `_IndexUnpickler`, and files of its own folder only."""

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        """Return what the checkpoint holds, and in which files."""
        with (Path(self.path) / ".metadata").open("rb") as file:
            index: Any = _IndexUnpickler(file).load()
        for place in index.storage_data.values():
            if "/" in place.relative_path:
                raise pickle.UnpicklingError(f"its index leads to {place.relative_path!r}")
        index.storage_meta = getattr(index, "storage_meta", None) or StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


class _DataPlanner(dcp.DefaultLoadPlanner):
    """Reads values that are no tensors as data."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Put one value in its place."""
        data: Any = torch.load(value, weights_only=True)
        safe = io.BytesIO()
        torch.save(data, safe)
        safe.seek(0)
        super().load_bytes(read_item, safe)


@contextmanager
def _alone_is_no_news() -> Generator[None]:
    """Silence torch's remark that one process saves alone, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
