"""How much runs at once: the resizable bound, and the bound that follows a policy's load."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.concurrency.limiter import PolicyLoad, Slots, first_error, next_limit


async def hold(slots: Slots, name: str, seen: list[str], release: asyncio.Event) -> None:
    async with slots:
        seen.append(name)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_serve_in_the_order_of_asking_and_never_more_than_the_limit() -> None:
    slots, seen, release = Slots(2), [], asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in "abcd":
            tasks.create_task(hold(slots, name, seen, release))
        await settle()
        assert (seen, slots.in_use, slots.waiting) == (["a", "b"], 2, 2)
        release.set()
    assert seen == ["a", "b", "c", "d"]
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_slots_grow_at_once_and_shrink_as_they_are_given_back() -> None:
    slots, seen, release = Slots(1), [], asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in "abcd":
            tasks.create_task(hold(slots, name, seen, release))
        await settle()
        slots.resize(3)
        await settle()
        assert (seen, slots.in_use) == (["a", "b", "c"], 3)
        slots.resize(1)
        assert slots.in_use == 3  # who holds one keeps it
        release.set()
    assert seen == ["a", "b", "c", "d"]


async def test_a_cancelled_wait_loses_no_slot() -> None:
    slots, seen, release = Slots(1), [], asyncio.Event()
    first = asyncio.create_task(hold(slots, "a", seen, release))
    second = asyncio.create_task(hold(slots, "b", seen, release))
    await settle()
    release.set()
    await asyncio.sleep(0)  # `a` gives its slot to `b`, which has not run yet
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert slots.in_use == 0
    async with slots:
        assert slots.in_use == 1


async def test_a_wait_that_a_free_slot_has_passed_by_ends_as_cancelled() -> None:
    slots = Slots(1)
    await slots.__aenter__()
    waiting = asyncio.create_task(slots.__aenter__())
    await settle()
    waiting.cancel()
    await slots.__aexit__(None, None, None)  # before the cancelled one runs again
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (slots.in_use, slots.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "load", "in_use", "expected"),
    [
        # 8 waiting > 0.1 * 40 running: 0.8 * 64 = 51.2
        (64, PolicyLoad(running=40, waiting=8), 64, 51),
        # 4 waiting = 0.1 * 40: not more, so it grows by 0.1 * 64 = 6.4
        (64, PolicyLoad(running=40, waiting=4), 64, 70),
        # nothing queues, but slots are free: more would change nothing
        (64, PolicyLoad(running=40, waiting=0), 63, 64),
        # 0.95 of the cache is taken: 0.8 * 50 = 40
        (50, PolicyLoad(running=40, waiting=0, cache_share=0.95), 50, 40),
        (50, PolicyLoad(running=40, waiting=0, cache_share=0.94), 50, 55),
        (5, PolicyLoad(running=5, waiting=0), 5, 6),  # by one at least
        (98, PolicyLoad(running=9, waiting=0), 98, 100),  # 107 is above the highest
        (5, PolicyLoad(running=1, waiting=9), 5, 4),  # 4.0; the lowest is 4
        (4, PolicyLoad(running=1, waiting=9), 4, 4),
    ],
)
def test_next_limit_by_hand(limit: int, load: PolicyLoad, in_use: int, expected: int) -> None:
    assert next_limit(limit, load, in_use=in_use, lowest=4, highest=100) == expected


def test_first_error_is_no_group() -> None:
    inner = OSError("disk")
    group = BaseExceptionGroup("a", [BaseExceptionGroup("b", [inner]), ValueError("later")])
    assert first_error(group) is inner
