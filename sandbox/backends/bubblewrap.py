"""Boxes made by bubblewrap: Linux namespaces, no daemon, some 30 ms to start.

The host's `/usr` is there read-only (Python, compiler, coreutils), nothing else of the host is. The
work folder and the scratch folders lie in memory and are bounded in all, not file by file.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from agentgym.errors import InfrastructureError
from agentgym.sandbox.base import SandboxLimits, SandboxUnavailableError
from agentgym.sandbox.host import cgroups, seccomp, uids
from agentgym.sandbox.supervised.bootstrap import supervisor_argv
from agentgym.sandbox.supervised.sandbox import SupervisedSandbox
from agentgym.sandbox.supervised.transport import Channel, InnerProcessChannel, memory_file

INSIDE_UID = 65534
ENTER_AND_RUN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
"""Enters the control groups while still root, then becomes the next program."""

_ACCOUNTS = (
    ("passwd", b"box:x:65534:65534::/box:/bin/sh\n"),
    ("group", b"box:x:65534:\n"),
)
"""What programs in the box are told about its one user."""

_group_numbers = itertools.count()


class BubblewrapSandbox(SupervisedSandbox):
    """A box in namespaces of its own, without network."""

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        super().__init__(limits)
        self._hierarchy = find_hierarchy()
        self._group: cgroups.Group | None = None
        self._uid: uids.LeasedUid | None = None

    @property
    def holds(self) -> frozenset[str]:
        """What control groups bound on this machine: some of memory, pids, cpu."""
        return self._hierarchy.holds if self._hierarchy else frozenset()

    def _rlimits(self) -> dict[str, int]:
        rlimits = super()._rlimits() | {"RLIMIT_NPROC": self.limits.max_processes}
        if "memory" not in self.holds:
            rlimits["RLIMIT_AS"] = self.limits.memory_bytes
        return rlimits

    def _memory_kills(self) -> int:
        return self._group.memory_kills() if self._group else 0

    async def _launch(self) -> Channel:
        bwrap = find_bwrap()
        program = seccomp.filter_program()
        python = box_python()
        with contextlib.ExitStack() as inherited:  # closed here once the box has them
            diagnosis = -1
            try:
                descriptors = {
                    name: _inherited(inherited, data)
                    for name, data in (("seccomp", program), *_ACCOUNTS)
                }
                diagnosis = memory_file(b"")
                argv = [*self._entry_argv(), bwrap, *self._bwrap_flags(descriptors, python)]
                argv += ["--", *supervisor_argv(python)]
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=diagnosis,
                    pass_fds=tuple(descriptors.values()),
                    env={},  # else /proc/1/environ of the box shows the host's
                    cwd="/",
                    start_new_session=True,
                )
            except BaseException as error:
                if diagnosis >= 0:
                    os.close(diagnosis)
                await self._release()
                if isinstance(error, OSError):
                    raise InfrastructureError(f"cannot start bubblewrap: {error}") from error
                raise
        return InnerProcessChannel(process, diagnosis)

    def _entry_argv(self) -> list[str]:
        """Return the words before `bwrap`: enter the groups, then drop root."""
        argv: list[str] = []
        if self._hierarchy is not None:
            name = cgroups.group_name(next(_group_numbers))
            try:
                self._group = self._hierarchy.make(name, self.limits)
            except OSError as error:
                raise InfrastructureError(f"cannot make a control group: {error}") from error
            argv += ["/bin/sh", "-c", ENTER_AND_RUN, "sh", *map(str, self._group.entries), "--"]
        if uids.needs_own_uid():
            self._uid = uids.lease_uid()
            uid = self._uid.uid
            argv += [_find("setpriv", "util-linux"), f"--reuid={uid}", f"--regid={uid}"]
            argv += ["--clear-groups", "--"]
        return argv

    def _bwrap_flags(self, descriptors: dict[str, int], python: str) -> list[str]:
        disk = self.limits.disk_bytes
        flags = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
        flags += ["--as-pid-1", "--clearenv", "--cap-drop", "ALL", "--hostname", "box"]
        flags += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID)]
        flags += ["--ro-bind", "/usr", "/usr", *_system_links()]
        flags += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
        flags += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
        flags += ["--ro-bind-data", str(descriptors["passwd"]), "/etc/passwd"]
        flags += ["--ro-bind-data", str(descriptors["group"]), "/etc/group"]
        if not python.startswith("/usr/"):
            flags += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        flags += ["--proc", "/proc", "--dev", "/dev"]
        for folder, size in ((self.work_dir, disk), ("/tmp", disk // 4), ("/dev/shm", disk // 4)):
            flags += ["--perms", "0755", "--size", str(size), "--tmpfs", folder]
        flags += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", self.work_dir]
        return [*flags, "--seccomp", str(descriptors["seccomp"])]

    async def _release(self) -> None:
        group, self._group = self._group, None
        uid, self._uid = self._uid, None
        if group is not None:
            await group.remove()
        if uid is not None:
            uid.release()


def _inherited(stack: contextlib.ExitStack, data: bytes) -> int:
    descriptor = memory_file(data)
    stack.callback(os.close, descriptor)
    return descriptor


@functools.cache
def find_hierarchy() -> cgroups.Hierarchy | None:
    """Return where groups can be made; tried out once, since permission bits do not tell all.

    Groups of processes that ended without cleaning up are removed on this occasion.
    """
    hierarchy = cgroups.find_hierarchy()
    if hierarchy is None:
        return None
    try:
        group = hierarchy.make(cgroups.group_name(next(_group_numbers)), SandboxLimits())
    except OSError:
        return None
    for folder in (*group.folders, *hierarchy.leftovers()):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return hierarchy


def find_bwrap() -> str:
    """Return the path of `bwrap`.

    Raises:
        SandboxUnavailableError: If it is not installed, or this is not Linux.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError("bubblewrap boxes need Linux")
    return _find("bwrap", "bubblewrap")


def _find(program: str, package: str) -> str:
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/sbin")
    if path is None:
        raise SandboxUnavailableError(
            f"the program '{program}' is not installed: apt-get install {package}"
        )
    return path


@functools.cache
def box_python() -> str:
    """Return the Python that programs of a box see: the system's, else the one of this process."""
    for path in ("/usr/local/bin/python3", "/usr/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    return str(Path(sys.base_prefix) / "bin" / "python3")


def _system_links() -> list[str]:
    """Return flags for `/bin`, `/lib` and so on, links into `/usr` on merged systems."""
    flags: list[str] = []
    for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(folder)
        if path.is_symlink():
            flags += ["--symlink", os.readlink(path), folder]
        elif path.is_dir():
            flags += ["--ro-bind", folder, folder]
    return flags
