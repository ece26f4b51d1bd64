"""The first program of every box: starts, bounds, kills and cleans up all others.

It runs inside the box, as process 1 where the backend isolates, so that signals from programs of
the box do not reach it, and undumpable, so that they cannot look into it. It reads requests from
the host on standard input and answers each on standard output, one at a time.

Programs of a box share a user id, and one that lives on runs beside all later ones. So that it
cannot write what the host reads of a later one, a child stays as undumpable as the supervisor until
it has become its program, and each program has a Landlock domain of its own, where the kernel has
Landlock. `docs/sandbox.md` has the table of what is read, who can write it and what guards it.

A frame is two big-endian 32-bit lengths, a JSON header, a payload. The first frame's header is the
configuration. The source of this file goes to `python3 -c` through standard input (hence one long
file); it needs Python 3.8 and the standard library, and imports as little as it can, since its
start is part of a box's start.

In order: captured output, files, the process table, the requests, the frames, the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterable
from typing import Any, NoReturn

SWEEP_ROUNDS = 40  # after that many, a fork bomb that outruns single kills is killed as a whole
DRAIN_BYTES = 8 << 20  # a killed program's pipe holds at most 1 MiB, unless it raised the bound
REPLY_LIMIT = 1 << 20  # the host reads an answer in one piece, beside those of other boxes
SHUT_DOWN_S = 30
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 126
NOT_FOUND = 127
SHOWN_NAME = 200  # characters, so that a reason fits into a pipe's smallest atomic write
START_WAIT_S = 5.0  # a child becomes its program within milliseconds, or tells why it cannot
KILL_FIRST = 1000  # the highest `oom_score_adj`
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_REFER = 1 << 13  # renaming from folder to folder: denied in a domain unless allowed
LANDLOCK_SCOPE_SIGNAL = 1 << 1
LANDLOCK_LEAST, LANDLOCK_WITH_NETWORK, LANDLOCK_WITH_SCOPES = 2, 4, 6
"""Versions of the interface: the first that can allow REFER; those that lengthened its record."""


Header = dict[str, Any]
Request = dict[str, Any]


class RefusedError(Exception):
    """A request that cannot be done; its kind and text go back to the host."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Capture:
    """Keeps the first and the last half of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.tail_limit = limit // 2
        self.head_limit = limit - self.tail_limit
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Take bytes."""
        self.total += len(chunk)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self.tail += chunk
            if len(self.tail) > 2 * self.tail_limit + 65536:
                del self.tail[: len(self.tail) - self.tail_limit]

    def pieces(self) -> tuple[bytes, bytes]:
        """Return first and last bytes; together they are all if no more than the limit came."""
        extra = len(self.tail) - self.tail_limit
        return bytes(self.head), bytes(self.tail[extra:] if extra > 0 else self.tail)


class Answer:
    """Splits a stream into output before the marked answer, and the answer."""

    def __init__(self, marker: str, limit: int) -> None:
        self.begin = (marker + "<").encode()
        self.end = (marker + ">").encode()
        self.output = Capture(limit)
        self.pending = bytearray()
        self.is_open = False
        self.is_whole = False
        self.message: bytes | None = b""

    def add(self, chunk: bytes) -> None:
        """Take bytes."""
        self.pending += chunk
        if not self.is_open:
            at = self.pending.find(self.begin)
            if at < 0:
                keep = len(self.begin) - 1
                self.output.add(bytes(self.pending[:-keep]))
                del self.pending[:-keep]
                return
            self.output.add(bytes(self.pending[:at]))
            del self.pending[: at + len(self.begin)]
            self.is_open = True
        at = self.pending.find(self.end, max(0, len(self.pending) - len(chunk) - len(self.end)))
        if at >= 0 or len(self.pending) > REPLY_LIMIT:
            self.is_whole = True
            self.message = bytes(self.pending[:at]) if at >= 0 else None

    def finish(self) -> None:
        """Take what is left as output: no answer will come."""
        if not self.is_open:
            self.output.add(bytes(self.pending))


# ------------------------------------------------------------------------------------- files


def open_folder(root: str, parts: list[str], make: bool) -> int:
    """Return a descriptor of the folder, reached without following any link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(root, flags)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=folder)
            deeper = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = deeper
    except OSError as error:
        os.close(folder)
        raise RefusedError("file", f"{'/'.join(parts)}: {error.strerror}") from error
    return folder


def read_file(root: str, parts: list[str], max_bytes: int) -> bytes:
    """Return the bytes of a regular file."""
    folder = open_folder(root, parts[:-1], False)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(parts[-1], flags, dir_fd=folder)
    except OSError as error:
        raise RefusedError("file", f"{'/'.join(parts)}: {error.strerror}") from error
    finally:
        os.close(folder)
    with os.fdopen(file, "rb", buffering=0) as stream:
        info = os.fstat(stream.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise RefusedError("file", f"{'/'.join(parts)}: not a regular file")
        data = bytearray()
        while len(data) <= max_bytes:
            chunk = stream.read(min(1 << 20, max_bytes + 1 - len(data)))
            if not chunk:
                return bytes(data)
            data += chunk
    raise RefusedError("file", f"{'/'.join(parts)}: longer than {max_bytes} bytes")


def write_file(root: str, parts: list[str], data: bytes, is_executable: bool) -> None:
    """Replace or make a regular file."""
    folder = open_folder(root, parts[:-1], True)
    name = parts[-1]
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o755 if is_executable else 0o644, dir_fd=folder)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(file)
    except OSError as error:
        raise RefusedError("file", f"{'/'.join(parts)}: {error.strerror}") from error
    finally:
        os.close(folder)


def wipe(root: str, deadline: float) -> None:
    """Empty a folder; folders deep inside are moved up first, so that no path grows long."""
    if os.stat(root).st_uid == os.geteuid():
        os.chmod(root, 0o755)
    moved = 0
    folders = [root]
    while folders:
        folder = folders.pop()
        if folder != root:
            os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > deadline:
                    raise TimeoutError
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                moved += 1
                path = entry.path
                if folder != root:
                    os.chmod(path, 0o700)
                    path = f"{root}/.wiped-{os.getpid()}-{moved}"
                    os.rename(entry.path, path)
                folders.append(path)
        if folder != root:
            os.rmdir(folder)
    if hasattr(os, "listxattr"):
        for name in os.listxattr(root):
            if name.startswith("user."):
                os.removexattr(root, name)


# ------------------------------------------------------------------------- the process table


def parents() -> dict[int, tuple[int, bytes]]:
    """Return pid -> (parent, state) of all visible processes."""
    table: dict[int, tuple[int, bytes]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields:
                table[int(name)] = (int(fields[1]), fields[0])
    return table


def descends(pid: int, ancestors: set[int], table: dict[int, tuple[int, bytes]]) -> bool:
    """Whether one of `ancestors` is `pid` or above it."""
    while pid in table:
        if pid in ancestors:
            return True
        pid = table[pid][0]
    return False


class Program:
    """A started program and the host's ends of its pipes."""

    def __init__(self, pid: int, stdin: int, outputs: Iterable[int]) -> None:
        self.pid = pid
        self.exit_code: int | None = None  # here, since a later process may get the same pid
        self.stdin: int | None = stdin
        self.outputs: dict[int, Any] = dict.fromkeys(outputs)  # -> what takes the bytes

    def close_stdin(self) -> None:
        """Let the program read an end of input."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close(self) -> None:
        """Close all pipes."""
        self.close_stdin()
        for output in self.outputs:
            os.close(output)
        self.outputs = {}


class Supervisor:
    """All state of the box."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self.replies = replies
        self.is_init = os.getpid() == 1
        self.programs: dict[int, Program] = {}  # those that may live on, by number
        self.started = 0
        self.tracked: dict[int, Program] = {}  # those that are not reaped, by pid
        self.own_pid = os.getpid()
        self.oom_score = OomScore()  # first: the file of an undumpable process cannot be opened
        self.libc = load_libc(self.is_init)
        self.domain = make_ruleset(self.libc) if self.is_init else None
        self.wakeup, wakeup_end = os.pipe()
        for end in (self.wakeup, wakeup_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        self.settings = self.own_settings()
        self.config = self.receive()[0]

    def own_settings(self) -> list[Any]:
        """What programs of the box might change about this process from outside."""
        names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
        limits = [resource.getrlimit(getattr(resource, name)) for name in names]
        affinity = sorted(os.sched_getaffinity(0))
        return [limits, os.getpriority(os.PRIO_PROCESS, 0), affinity, os.sched_getscheduler(0)]

    # -- starting

    def spawn(self, request: dict[str, Any], merge: bool, deadline: float) -> Program:
        """Start a program; raise RefusedError with the exit code if it cannot be started.

        One of which nothing is known at the deadline is taken for started.
        """
        stdin, stdin_end = os.pipe()
        out_end, stdout = os.pipe()
        err_end, stderr = (None, stdout) if merge else os.pipe()
        failed_end, failed = os.pipe()
        ends = {stdin, stdout, stderr, failed}
        try:
            pid = self.fork()
        except OSError as error:
            for end in ends | {stdin_end, out_end, failed_end, err_end} - {None}:
                os.close(end)
            raise RefusedError("start", f"{CANNOT_START} cannot start: {error.strerror}") from None
        if pid == 0:
            self.become(request, stdin, stdout, stderr, failed)
        for end in ends:
            os.close(end)
        outputs = [end for end in (out_end, err_end) if end is not None]
        program = self.tracked[pid] = Program(pid, stdin_end, outputs)
        problem = start_problem(failed_end, deadline)
        os.close(failed_end)
        if problem:
            program.close()
            os.kill(pid, signal.SIGKILL)
            self.wait_for(program)
            raise RefusedError("start", problem)
        for end in [stdin_end, *outputs]:
            os.set_blocking(end, False)
        return program

    def fork(self) -> int:
        """Fork; the child is one that the kernel kills for memory before the supervisor."""
        self.oom_score.write(KILL_FIRST)
        try:
            return os.fork()
        finally:  # in the child too: the file is the supervisor's there as well
            self.oom_score.write(self.oom_score.own)

    def become(
        self, request: dict[str, Any], stdin: int, stdout: int, stderr: int, failed: int
    ) -> NoReturn:
        """Turn the forked child into the program. Never returns."""
        try:
            os.close(self.requests)
            os.close(self.replies)
            for descriptor, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
                os.dup2(descriptor, standard)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if not self.is_init:
                self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if self.domain is not None:
                call(self.libc, LANDLOCK_RESTRICT_SELF, self.domain, 0)
            for name, value in self.config["rlimits"].items():
                limit_to(getattr(resource, name), value)
            os.chdir(os.path.join(self.config["work"], request["cwd"]))
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START
            text = f"{code} {request['argv'][0][:SHOWN_NAME]}: {error.strerror}"
            os.write(failed, text.encode("utf-8", "replace"))
        finally:
            os._exit(CANNOT_START)

    # -- ending

    def reap(self) -> None:
        """Collect the dead; remember how tracked programs ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            program = self.tracked.pop(pid, None)
            if program is not None:
                signalled = os.WIFSIGNALED(status)
                program.exit_code = 128 + os.WTERMSIG(status) if signalled else status >> 8

    def wait_for(self, program: Program, seconds: float = 2.0) -> int:
        """Return the exit code of a program that is about to end."""
        deadline = time.monotonic() + seconds
        while program.exit_code is None and time.monotonic() < deadline:
            self.reap()
            if program.exit_code is None:
                time.sleep(0.0005)
        return 128 + signal.SIGKILL if program.exit_code is None else program.exit_code

    def living(self) -> set[int]:
        """Return the pids of programs that may live on, and do."""
        return {program.pid for program in self.programs.values() if program.exit_code is None}

    def others(self) -> list[int]:
        """Return the living processes that belong to no program that may live on."""
        table = parents()
        living = self.living()
        return [
            pid
            for pid, (_, state) in table.items()
            if pid != self.own_pid
            and state != b"Z"
            and (self.is_init or descends(pid, {self.own_pid}, table))
            and not descends(pid, living, table)
        ]

    def sweep(self) -> None:
        """Kill every process that no living program accounts for."""
        if self.is_init and not self.living():
            self.kill_all()
            return
        for _ in range(SWEEP_ROUNDS):
            victims = self.others()
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            if not victims:
                return
            time.sleep(0.0005)
        if self.is_init:
            self.kill_all()

    def kill_all(self) -> None:
        """As process 1: kill all others at one stroke, which no fork can outrun."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                self.reap()
                return
            self.reap()
            time.sleep(0.0005)

    def cpu_seconds(self, program: Program | None = None) -> float:
        """Processor time of all reaped descendants, and of one living program."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = usage.ru_utime + usage.ru_stime
        if program is not None:
            try:
                with open(f"/proc/{program.pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                ticks = sum(int(field) for field in fields[11:15])
                seconds += ticks / os.sysconf("SC_CLK_TCK")
            except OSError:
                pass
        return seconds

    # -- waiting

    def pump(
        self,
        program: Program,
        data: bytes,
        deadline: float,
        answer: Answer | None = None,
    ) -> bool:
        """Move bytes until the program ends or its answer is whole; return False if it was late.

        Where an answer is waited for, standard input stays open.
        """
        view = memoryview(data)
        poller = select.poll()
        poller.register(self.requests, 0)  # only a hang-up of the host wakes it
        poller.register(self.wakeup, select.POLLIN)
        for output in program.outputs:
            poller.register(output, select.POLLIN)
        if view and program.stdin is not None:
            poller.register(program.stdin, select.POLLOUT)
        elif answer is None:
            program.close_stdin()
        self.reap()
        while program.exit_code is None and not (answer is not None and answer.is_whole):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, events in poller.poll(min(left, 1000.0) * 1000 + 1):
                if descriptor == self.requests:
                    if events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                        self.shut_down()
                elif descriptor == self.wakeup:
                    read_some(self.wakeup)
                    self.reap()
                elif descriptor == program.stdin:
                    view = write_some(descriptor, view)
                    if not view:
                        poller.unregister(descriptor)
                        if answer is None:
                            program.close_stdin()
                elif not take(descriptor, program.outputs[descriptor]):
                    poller.unregister(descriptor)
        return True

    def shut_down(self) -> NoReturn:
        """The host is gone: leave nothing behind."""
        self.programs = {}
        self.sweep()
        if not self.is_init:
            with contextlib.suppress(OSError, TimeoutError, AttributeError):
                wipe(self.config["work"], time.monotonic() + SHUT_DOWN_S)
                os.rmdir(self.config["work"])
        os._exit(0)

    # -- requests

    def do_exec(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Run a program to its end."""
        began, cpu = time.monotonic(), self.cpu_seconds()
        captures = [Capture(request["limit"]), Capture(request["limit"])]
        timed_out, deadline = False, began + request["timeout_s"]
        try:
            program = self.spawn(request, merge=False, deadline=deadline)
        except RefusedError as problem:
            code, _, text = str(problem).partition(" ")
            captures[1].add(text.encode() + b"\n")
        else:
            program.outputs = dict(zip(program.outputs, captures))  # noqa: B905
            timed_out = not self.pump(program, data, deadline)
            self.sweep()
            for output, capture in program.outputs.items():
                drain(output, capture)
            program.close()
            code = self.wait_for(program)
        header: dict[str, Any] = {"exit_code": int(code), "timed_out": timed_out}
        header["cpu_s"] = self.cpu_seconds() - cpu
        header["wall_s"] = time.monotonic() - began
        pieces = [piece for capture in captures for piece in capture.pieces()]
        header["sizes"] = [len(piece) for piece in pieces]
        header["totals"] = [capture.total for capture in captures]
        return header, b"".join(pieces)

    def do_start(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Start a program that lives on."""
        program = self.spawn(request, merge=True, deadline=time.monotonic() + START_WAIT_S)
        self.started += 1
        self.programs[self.started] = program
        return {"program": self.started}, b""

    def do_interact(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a message to a program; collect output and answer."""
        number = request["program"]
        program = self.programs.get(number)
        if program is None:
            raise RefusedError("ended", "the program has ended")
        began, cpu = time.monotonic(), self.cpu_seconds(program)
        answer = Answer(request["marker"], request["limit"])
        program.outputs = dict.fromkeys(program.outputs, answer)
        in_time = self.pump(program, data, began + request["timeout_s"], answer)
        used = self.cpu_seconds(program)
        code = None
        if not in_time or program.exit_code is not None or answer.message is None:
            code = self.end(number, answer)
        answer.finish()
        pieces = answer.output.pieces()
        # What comes in between the deadline and the kill is late all the same.
        message = answer.message if answer.is_whole and in_time else None
        header: dict[str, Any] = {
            "timed_out": not in_time,
            "exit_code": code,
            "cpu_s": max(0.0, used - cpu),
        }
        header["wall_s"] = time.monotonic() - began
        header["sizes"] = [len(piece) for piece in pieces]
        header["totals"] = [answer.output.total]
        header["has_message"] = message is not None
        return header, b"".join(pieces) + (message or b"")

    def end(self, number: int, sink: Any) -> int:
        """Kill a long-running program and all that hangs on it; return its exit code."""
        program = self.programs.pop(number)
        self.sweep()
        if sink is not None:
            for output in program.outputs:
                drain(output, sink)
        program.close()
        return self.wait_for(program)

    def do_stop(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """End a program."""
        if request["program"] in self.programs:
            self.end(request["program"], None)
        return {}, b""

    def do_read(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Read a file."""
        return {}, read_file(self.config["work"], request["path"], request["max_bytes"])

    def do_write(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Write a file."""
        write_file(self.config["work"], request["path"], data, request["is_executable"])
        return {}, b""

    def do_ping(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer."""
        return {"processes": len(self.others())}, b""

    def do_reset(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Clean up; answer why the box is not as new, or an empty text."""
        for number in list(self.programs):
            self.end(number, None)
        self.sweep()
        self.reap()
        why = ""
        deadline = time.monotonic() + request["timeout_s"]
        folders = [self.config["work"]] + self.config["scratch"]
        try:
            for folder in folders:
                wipe(folder, deadline)
                if os.listdir(folder):
                    why = f"{folder} is not empty"
        except (OSError, TimeoutError, MemoryError) as error:
            why = f"cannot empty the folders: {error!r}"
        if self.is_init and self.others():
            why = "processes are left"
        if self.own_settings() != self.settings:
            why = "settings of the supervisor were changed"
        for name in ("shm", "sem", "msg"):
            if self.is_init and count_lines("/proc/sysvipc/" + name) > 1:
                why = "System V objects are left"
        return {"why": why}, b""

    # -- frames

    def serve(self) -> NoReturn:
        """Answer requests until the host closes its end."""
        poller = select.poll()
        poller.register(self.requests, select.POLLIN)
        poller.register(self.wakeup, select.POLLIN)
        self.answer({"python": list(sys.version_info[:2])}, b"")
        while True:
            ready = dict(poller.poll())
            if self.wakeup in ready:
                read_some(self.wakeup)
                self.reap()
            if self.requests not in ready:
                continue
            request, data = self.receive()
            kills = memory_kills()
            header: dict[str, Any]
            try:
                header, payload = getattr(self, "do_" + request["op"])(request, data)
            except RefusedError as refused:
                header, payload = {"refused": refused.kind, "text": str(refused)}, b""
            except (OSError, MemoryError, ValueError) as error:  # whatever programs did, it lives
                header, payload = {"refused": "box", "text": repr(error)}, b""
            header["out_of_memory"] = memory_kills() > kills
            self.answer(header, payload)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next frame of the host."""
        header_size, payload_size = struct.unpack(">II", self.read_exactly(8))
        header = json.loads(self.read_exactly(header_size))
        return header, self.read_exactly(payload_size)

    def read_exactly(self, count: int) -> bytes:
        """Return that many bytes; shut down if the host is gone."""
        data = bytearray()
        while len(data) < count:
            chunk = os.read(self.requests, min(count - len(data), 1 << 20))
            if not chunk:
                self.shut_down()
            data += chunk
        return bytes(data)

    def answer(self, header: dict[str, Any], payload: bytes) -> None:
        """Send a frame to the host."""
        text = json.dumps(header).encode()
        view = memoryview(struct.pack(">II", len(text), len(payload)) + text + payload)
        try:
            while view:
                view = view[os.write(self.replies, view) :]
        except BrokenPipeError:
            self.shut_down()


def read_some(descriptor: int) -> bytes | None:
    """Return what can be read now; None if nothing, no bytes at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def take(descriptor: int, sink: Any) -> bool:
    """Hand what can be read to `sink`; return whether more may come."""
    chunk = read_some(descriptor)
    if chunk:
        sink.add(chunk)
    return chunk != b""


def drain(descriptor: int, sink: Any) -> None:
    """Hand on what is left in a pipe whose writers are dead."""
    taken = 0
    while taken < DRAIN_BYTES:
        chunk = read_some(descriptor)
        if not chunk:
            return
        sink.add(chunk)
        taken += len(chunk)


def write_some(descriptor: int, view: memoryview) -> memoryview:
    """Write what fits; return the rest, nothing if nobody reads."""
    try:
        return view[os.write(descriptor, view[: 1 << 16]) :]
    except BlockingIOError:
        return view
    except BrokenPipeError:
        return view[:0]


def count_lines(path: str) -> int:
    """Return the number of lines of a file, 0 if there is none."""
    try:
        with open(path) as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def memory_kills() -> int:
    """Return the kernel's count of kills for memory, where the box can see it."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                counts = dict(line.split() for line in file)
            return int(counts.get("oom_kill", 0))
        except (OSError, ValueError):
            continue
    return 0


def limit_to(what: int, value: int) -> None:
    """Lower a limit; a limit that is lower already stays."""
    hard = resource.getrlimit(what)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (bound, bound))


def start_problem(failed_end: int, deadline: float) -> str:
    """Return the exit code and the reason if a child could not become its program, else nothing.

    The pipe is closed by the kernel when the program begins. Whatever stands in it was not written
    by our child unless it looks like it.
    """
    poller = select.poll()
    poller.register(failed_end, select.POLLIN)
    left = max(0.0, deadline - time.monotonic())
    if not poller.poll(min(left, 1000.0) * 1000 + 1):
        return ""
    text = os.read(failed_end, select.PIPE_BUF).decode("utf-8", "replace")
    if text and text.partition(" ")[0] not in (str(CANNOT_START), str(NOT_FOUND)):
        return f"{CANNOT_START} cannot start"
    return text


class OomScore:
    """How early the kernel kills this process for memory; its children begin with the same."""

    def __init__(self) -> None:
        self.file = -1
        try:
            self.file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.own = int(os.pread(self.file, 16, 0))
        except (OSError, ValueError):
            self.own = 0

    def write(self, score: int) -> None:
        """Set it, where it can be set."""
        with contextlib.suppress(OSError):
            os.pwrite(self.file, str(score).encode(), 0)


def load_libc(is_init: bool) -> Any:
    """Return the C library, after taking the supervisor out of the programs' reach."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    option, value = (PR_SET_DUMPABLE, 0) if is_init else (PR_SET_CHILD_SUBREAPER, 1)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    return libc


def call(libc: Any, number: int, *arguments: Any) -> int:
    """Make a system call that the C library has no function for; raise OSError if it fails."""
    import ctypes

    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_void_p, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def landlock_version(libc: Any) -> int:
    """Return the version of the kernel's Landlock, 0 if it has none."""
    try:
        return call(libc, LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def make_ruleset(libc: Any) -> int | None:
    """Return a descriptor of the rules under which each program gets a domain of its own.

    They deny no file. What matters is that a program in one domain can neither open what is in
    another's `/proc` folder (memory, descriptors, environment) nor, from version 6 on, signal it.
    """
    import ctypes

    version = landlock_version(libc)
    if version < LANDLOCK_LEAST:
        return None
    record = struct.pack("=QQQ", LANDLOCK_REFER, 0, LANDLOCK_SCOPE_SIGNAL)
    if version < LANDLOCK_WITH_SCOPES:
        record = record[: 16 if version >= LANDLOCK_WITH_NETWORK else 8]
    buffer = ctypes.create_string_buffer(record, len(record))
    ruleset = call(libc, LANDLOCK_CREATE_RULESET, ctypes.addressof(buffer), len(record), 0)
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", LANDLOCK_REFER, root)
    buffer = ctypes.create_string_buffer(rule, len(rule))
    place = ctypes.addressof(buffer)
    call(libc, LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, place, 0)
    os.close(root)
    return ruleset


def main() -> None:
    """Take over standard input and output, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler would let programs end process 1
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    Supervisor(requests, replies).serve()


if __name__ == "__main__":
    main()
