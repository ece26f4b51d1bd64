"""The system-call filter of a box, as libseccomp builds it and as container engines read it.

A deny list: what programs of a box never need and what has opened boxes before. Denied calls fail
with EPERM; `clone3` with ENOSYS, since its flags cannot be seen by a filter and the C library then
falls back to `clone`, whose flags can.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from agentgym.sandbox.base import SandboxUnavailableError

DENIED = (
    # new namespaces and mounts
    "unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig",
    "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr",
    # other processes' memory
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
    # the kernel's keys, programs, counters and other wide surfaces
    "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "fanotify_init", "lookup_dcookie", "vhangup", "syslog",
    "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "acct", "swapon",
    "swapoff", "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "iopl", "ioperm", "modify_ldt", "settimeofday", "clock_settime", "adjtimex",
    "clock_adjtime", "ioprio_set", "sethostname", "setdomainname", "nfsservctl", "uselib",
    # memory and queues that outlive a process, or that no rlimit counts
    "shmget", "shmat", "msgget", "semget", "mq_open", "memfd_create", "memfd_secret",
)  # fmt: skip
CLONE_NEW_FLAGS = (
    0x00000080,  # time
    0x00020000,  # mount
    0x02000000,  # cgroup
    0x04000000,  # uts
    0x08000000,  # ipc
    0x10000000,  # user
    0x20000000,  # pid
    0x40000000,  # network
)
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""All others fail; AF_VSOCK, for one, is not held by a network namespace."""
LAST_FAMILY = 64
"""Above every family that kernels know; the rest is denied by one comparison."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Requests of `ioctl` that type into a terminal."""
INT_MASK = 0xFFFFFFFF
OWN_PROCESS = 0
"""As a process id: the caller. Limits and priorities of others are not a program's business."""
OF_A_PROCESS = (
    ("prlimit64", 0),
    ("setpriority", 1),
    ("sched_setaffinity", 0),
    ("sched_setscheduler", 0),
    ("sched_setparam", 0),
    ("sched_setattr", 0),
)
"""Calls with the position of the process id among their arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A comparison of one argument of a call: `EQ`, `NE`, `GT`, or `MASKED_EQ` with a mask."""

    argument: int
    operator: str
    value: int
    mask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A call that fails with `error`, always or where the condition holds."""

    call: str
    error: int = errno.EPERM
    condition: Condition | None = None


def rules() -> tuple[Rule, ...]:
    """Return what programs of a box are denied."""
    denied = [Rule(call=name) for name in DENIED]
    denied.append(Rule(call="clone3", error=errno.ENOSYS))
    masks = [("clone", 0, flag, flag) for flag in CLONE_NEW_FLAGS]
    masks += [("ioctl", 1, INT_MASK, request) for request in (TIOCSTI, TIOCLINUX)]
    masks += [("setpriority", 0, INT_MASK, os.PRIO_USER)]
    for call, argument, mask, value in masks:
        where = Condition(argument=argument, operator="MASKED_EQ", value=value, mask=mask)
        denied.append(Rule(call=call, condition=where))
    families = [family for family in range(LAST_FAMILY + 1) if family not in SOCKET_FAMILIES]
    comparisons = [("socket", 0, "EQ", family) for family in families]
    comparisons += [("socket", 0, "GT", LAST_FAMILY)]
    comparisons += [(call, argument, "NE", OWN_PROCESS) for call, argument in OF_A_PROCESS]
    for call, argument, operator, value in comparisons:
        where = Condition(argument=argument, operator=operator, value=value)
        denied.append(Rule(call=call, condition=where))
    return tuple(denied)


@functools.cache
def filter_program() -> bytes:
    """Return the filter as a BPF program for `bwrap --seccomp`.

    Raises:
        SandboxUnavailableError: If libseccomp or its Python binding is missing.
    """
    seccomp = load_binding()
    program = seccomp.SyscallFilter(seccomp.ALLOW)
    for rule in rules():
        where = rule.condition
        arguments: list[Any] = []
        if where is not None:
            numbers = (where.mask, where.value) if where.mask else (where.value,)
            operator = getattr(seccomp, where.operator)
            arguments.append(seccomp.Arg(where.argument, operator, *numbers))
        _add(program, seccomp.ERRNO(rule.error), rule.call, *arguments)
    return _exported(program)


def docker_profile() -> str:
    """Return the filter as JSON for a container engine's `seccomp=` option."""
    calls: list[dict[str, Any]] = []
    for rule in rules():
        entry: dict[str, Any] = {"names": [rule.call], "action": "SCMP_ACT_ERRNO"}
        entry["errnoRet"] = rule.error
        where = rule.condition
        if where is not None:
            value, second = (where.mask, where.value) if where.mask else (where.value, 0)
            operator = f"SCMP_CMP_{where.operator}"
            comparison = {"index": where.argument, "value": value, "valueTwo": second}
            entry["args"] = [comparison | {"op": operator}]
        calls.append(entry)
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls})


def load_binding() -> Any:
    """Return the module `pyseccomp`.

    Raises:
        SandboxUnavailableError: If it, or the library below it, is missing.
    """
    try:
        pyseccomp: Any = importlib.import_module("pyseccomp")
    except ImportError as error:
        raise SandboxUnavailableError(
            "bubblewrap boxes need the package 'pyseccomp': pip install 'agentgym-rl-kit[sandbox]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise SandboxUnavailableError(
            "bubblewrap boxes need the library libseccomp: apt-get install libseccomp2"
        ) from error
    return pyseccomp


def _add(program: Any, action: Any, name: str, *arguments: Any) -> None:
    """Add a rule; calls that this architecture does not have cannot be made and need none."""
    try:
        program.add_rule(action, name, *arguments)
    except (OSError, ValueError) as error:
        unknown = isinstance(error, ValueError) or error.errno in (errno.EINVAL, errno.EDOM)
        if not unknown:
            raise


def _exported(program: Any) -> bytes:
    descriptor = os.memfd_create("agentgym-seccomp")
    with os.fdopen(descriptor, "r+b") as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()
