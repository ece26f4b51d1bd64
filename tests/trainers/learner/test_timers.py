"""Where a step's time goes: stretches add up, and are those of their step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentgym.trainers.learner import timers as subject
from agentgym.trainers.learner.timers import Stopwatch


def test_stretches_add_up_and_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 12.0, 20.0, 20.5, 31.0, 34.0])
    monkeypatch.setattr(subject, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    clock = Stopwatch()
    with clock.time("update_s"):
        pass
    with clock.time("logprob_s"):
        pass
    with pytest.raises(ValueError, match="broken"), clock.time("update_s"):
        raise ValueError("broken")
    assert clock.take() == {"update_s": 5.0, "logprob_s": 0.5}
    assert clock.take() == {}
