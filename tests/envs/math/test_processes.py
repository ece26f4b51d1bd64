"""The pool of killable processes, with a module of its own that misbehaves on request."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentgym.envs.math.processes import Ending, ProcessPool
from agentgym.errors import InfrastructureError

WORKER = """
import os, sys, time
from agentgym.envs.math.processes import serve

def answer(request):
    print("noise on standard output")
    if request["do"] == "sleep":
        time.sleep(60)
    if request["do"] == "die":
        os._exit(3)
    if request["do"] == "eat":
        return {"size": len(bytearray(8 * 1024**3))}
    if request["do"] == "flood":
        return {"text": "x" * 300_000}
    if request["do"] == "litter":
        open("litter.csv", "w").write("1,2")
        return {"folder": os.getcwd()}
    env = os.environ
    return {"pid": os.getpid(), "seed": env["PYTHONHASHSEED"], "secret": env.get("SECRET")}

serve(answer, prepare=lambda: None)
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPool]:
    (tmp_path / "misbehaving_worker.py").write_text(WORKER)
    (tmp_path / "broken_worker.py").write_text("import no_such_package")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SECRET", "key")
    found = ProcessPool("misbehaving_worker", size=2, timeout_s=30.0)
    yield found
    found.close()


def test_ask_reuses_one_process_for_one_caller(pool: ProcessPool) -> None:
    pids = {pool.ask({"do": "nothing"}).reply["pid"] for _ in range(5)}
    assert len(pids) == 1
    assert pool.status.started == 1
    assert pool.status.killed == 0


def test_process_works_in_a_folder_of_its_own_that_goes_with_it(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(pool.ask({"do": "litter"}).reply["folder"])
    assert folder != tmp_path
    assert [file.name for file in folder.iterdir()] == ["litter.csv"]
    assert not (tmp_path / "litter.csv").exists()
    pool.close()
    assert not folder.exists()


def test_processes_have_one_hash_seed_and_no_secrets(pool: ProcessPool) -> None:
    reply = pool.ask({"do": "nothing"}).reply
    assert (reply["seed"], reply["secret"]) == ("0", None)


def test_hung_request_is_killed_and_the_next_one_answered_d13(pool: ProcessPool) -> None:
    assert pool.ask({"do": "sleep"}, timeout_s=0.2).ending is Ending.TIMEOUT
    assert pool.ask({"do": "nothing"}).ending is Ending.ANSWERED
    assert pool.status.killed == 1


@pytest.mark.parametrize("deed", ["die", "eat"])
def test_death_of_a_process_is_an_outcome(pool: ProcessPool, deed: str) -> None:
    assert pool.ask({"do": deed}).ending is Ending.DIED
    assert pool.ask({"do": "nothing"}).ending is Ending.ANSWERED


def test_long_replies_arrive_whole(pool: ProcessPool) -> None:
    assert len(pool.ask({"do": "flood"}).reply["text"]) == 300_000


def test_killed_processes_are_reaped(pool: ProcessPool) -> None:
    pid = pool.ask({"do": "nothing"}).reply["pid"]
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    pool.close()
    assert pool.ask({"do": "nothing"}).reply["pid"] != pid


def test_many_threads_share_few_processes(pool: ProcessPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda _: pool.ask({"do": "nothing"}), range(24)))
    assert {outcome.ending for outcome in outcomes} == {Ending.ANSWERED}
    assert pool.status.started <= 2


def test_process_that_was_killed_while_idle_is_replaced(pool: ProcessPool) -> None:
    pid = pool.ask({"do": "nothing"}).reply["pid"]
    os.kill(pid, 9)
    for _ in range(200):  # until the pipe is closed, so that writing to it fails
        if not Path(f"/proc/{pid}/stat").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.01)
    outcome = pool.ask({"do": "nothing"})
    assert outcome.ending is Ending.ANSWERED
    assert outcome.reply["pid"] != pid


def test_forked_child_does_not_use_its_parents_processes(pool: ProcessPool) -> None:
    pool.ask({"do": "nothing"})
    parents = pool._idle[0]
    pool._pid = -1  # as in a child: another process id than the one the pool was made in
    pool.ask({"do": "nothing"})
    assert pool.status.started == 2
    parents.kill()


def test_module_that_does_not_start_is_an_infrastructure_error(pool: ProcessPool) -> None:
    broken = ProcessPool("broken_worker", size=1, timeout_s=1.0)
    for _ in range(2):  # the place in the pool is free again
        with pytest.raises(
            InfrastructureError, match=r"ended before it was ready: .*no_such_package"
        ):
            broken.ask({})


def test_pool_outlives_the_thread_that_used_it_first(pool: ProcessPool) -> None:
    thread = threading.Thread(target=pool.ask, args=({"do": "nothing"},))
    thread.start()
    thread.join()
    pool.ask({"do": "nothing"})
    assert pool.status.started == 1


@pytest.mark.parametrize(("size", "timeout_s"), [(0, 1.0), (1, 0.0), (1, -2.0)])
def test_pool_refuses_bounds_that_are_none(size: int, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        ProcessPool("misbehaving_worker", size=size, timeout_s=timeout_s)
