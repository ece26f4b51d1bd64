"""Limits: what is a bound, the tighter of two, shortened observations."""

from typing import Any

import pytest

from agentgym.records.limits import Limits, shorten_middle


@pytest.mark.parametrize("field", ["max_turns", "max_tokens", "max_tool_calls", "step_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_bound_is_positive(field: str, value: float) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=rf"'{field}' must be > 0 or None for no bound"):
        Limits(**arguments)


def test_merged_takes_the_tighter_bound_of_each() -> None:
    one = Limits(max_turns=6, max_tokens=None, max_seconds=2.5, max_tool_calls=None)
    two = Limits(max_turns=9, max_tokens=512, max_seconds=1.5, max_tool_calls=None)
    merged = one.merged(two)
    assert (merged.max_turns, merged.max_tokens, merged.max_seconds) == (6, 512, 1.5)
    assert merged.max_tool_calls is None
    assert merged == two.merged(one)


def test_shorten_middle_keeps_short_text() -> None:
    assert shorten_middle("x" * 10, 10) == "x" * 10
    assert shorten_middle("x" * 10, None) == "x" * 10


def test_shorten_middle_keeps_both_ends_and_names_the_cut() -> None:
    # 300 characters into 100. The notice is 40 long, so 30 characters stay at each end.
    text = "a" * 150 + "b" * 150
    notice = "\n[... 200 characters left out ...]\n"
    keep = 100 - len(notice)
    shown = shorten_middle(text, 100)
    assert shown == "a" * (keep // 2) + notice + "b" * (keep - keep // 2)
    assert len(shown) == 100


@pytest.mark.parametrize("bound", [1, 7, 35, 36, 37])
def test_shorten_middle_never_passes_the_bound(bound: int) -> None:
    assert len(shorten_middle("z" * 1000, bound)) <= bound
