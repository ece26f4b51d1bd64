"""`Worker`: the one thread that touches the model, and the queue of what it is asked to do."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from agentgym.errors import PolicyError
from agentgym.policies.transformers.batcher import Batcher
from agentgym.policies.transformers.jobs import Job

_Result = TypeVar("_Result")
_GATHER_S = 0.002
"""An idle worker waits this long after each arrival for more, so that episodes which ask together
run together. It changes speed, not results."""


class Worker:
    """Runs a batcher in a thread of its own, which starts with the first call.

    Args:
        batcher: What answers jobs.
        version: Policy version of the weights.
    """

    def __init__(self, batcher: Batcher, *, version: int) -> None:
        self._batcher = batcher
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_paused = False
        self._is_closed = False
        self.version = version
        """Learner updates behind the weights that sample now."""

    def post(self, action: Callable[[], None]) -> None:
        """Have the thread do something between two steps.

        Raises:
            PolicyError: If the worker is closed.
        """
        with self._lock:
            if self._is_closed:
                raise PolicyError("the policy is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
                self._thread.start()
            self._inbox.put(action)

    def call(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Have the thread compute something between two steps."""
        future: Future[_Result] = Future()

        def act() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except (PolicyError, RuntimeError, ValueError) as error:
                future.set_exception(error)
            except BaseException as error:
                # A fault of ours ends the thread, but nobody may wait for it for ever.
                future.set_exception(error)
                raise

        self.post(act)
        return future

    def pause(self) -> None:
        """Stop between two steps; what runs is kept."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False

    def close(self) -> None:
        """End the thread after the present step; jobs that still run fail."""
        with self._lock:
            thread, was_closed = self._thread, self._is_closed
            self._is_closed = True
            if thread is not None and not was_closed:
                self._inbox.put(lambda: None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            # Not inference mode: buffers that a model renews in passing would then be unusable
            # for a learner that shares the module.
            with torch.no_grad():
                while not self._is_closed:
                    self._receive()
                    if not self._is_closed and not self._is_paused and self._batcher.can_step:
                        self._step()
        finally:
            self._abandon()

    def _receive(self) -> None:
        """Do what was asked; wait for it if there is nothing to step."""
        must_wait = self._is_paused or not self._batcher.can_step
        if must_wait:
            self._inbox.get()()
        self._drain()
        while self._batcher.is_idle and self._batcher.jobs and not self._batcher.is_complete:
            try:
                self._inbox.get(timeout=_GATHER_S)()
            except queue.Empty:
                return
            self._drain()

    def _drain(self) -> None:
        while True:
            try:
                action = self._inbox.get_nowait()
            except queue.Empty:
                return
            action()

    def _step(self) -> None:
        try:
            self._batcher.step(self.version)
        except RuntimeError as error:  # torch: out of memory, shapes, devices
            jobs = self._batcher.jobs
            self._batcher.forget()
            _fail(self._batcher, jobs, PolicyError(f"generation failed: {error}"))

    def _abandon(self) -> None:
        """Fail what is left, so that nobody waits for a thread that has ended."""
        with self._lock:
            self._is_closed = True
        self._drain()
        error = sys.exception()
        reason = f"its thread ended: {error}" if error is not None else "aclose was called"
        _fail(
            self._batcher,
            self._batcher.jobs,
            PolicyError(f"the policy was closed while it answered: {reason}"),
        )


def _fail(batcher: Batcher, jobs: tuple[Job, ...], error: PolicyError) -> None:
    for job in jobs:
        batcher.cancel(job)
        job.on_done(error)


__all__ = ["Worker"]
