"""What comes back from an engine in this process, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.errors import InfrastructureError
from agentgym.policies.vllm.inprocess import sampled_logprobs


def flat(starts: list[int], ids: list[int], logprobs: list[float]) -> Any:
    return SimpleNamespace(start_indices=starts, token_ids=ids, logprobs=logprobs)


def test_the_sampled_id_of_each_place_counts_not_the_likeliest_beside_it() -> None:
    found = flat([0, 2, 3], [7, 9, 9, 4], [-3.5, -0.25, -0.5, -1.0])
    assert sampled_logprobs(found, (7, 9, 4)) == (-3.5, -0.5, -1.0)
    assert sampled_logprobs(None, ()) == ()
    assert sampled_logprobs(flat([], [], []), ()) == ()


@pytest.mark.parametrize("ids", [(7,), (7, 9, 4), (9, 9)])
def test_numbers_of_other_ids_are_a_failure_of_the_engine(ids: tuple[int, ...]) -> None:
    found = flat([0, 2], [7, 9, 9], [-3.5, -0.25, -0.5])
    with pytest.raises(InfrastructureError, match=rf"other ids than the {len(ids)} that"):
        sampled_logprobs(found, ids)


def test_ids_without_numbers_are_a_failure_of_the_engine() -> None:
    with pytest.raises(InfrastructureError, match="other ids than the 2"):
        sampled_logprobs(None, (1, 2))
