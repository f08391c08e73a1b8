"""The supervisor's coroutines end, whatever they do with a cancellation."""

from __future__ import annotations

import asyncio

from cogworkerd.supervisor.tasks import Tasks, cancel, pause


def test_a_coroutine_that_swallows_cancellations_is_cancelled_until_it_ends() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if swallowed == 3:
                    raise
                swallowed += 1

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await cancel({task})
        return task

    assert asyncio.run(main()).cancelled()
    assert swallowed == 3


def test_a_coroutine_that_ends_by_a_fault_is_told_and_one_that_is_ended_is_not() -> None:
    crashed: list[tuple[str, str]] = []

    async def faulty() -> None:
        raise ValueError("ours")

    async def main() -> None:
        tasks = Tasks(lambda error, name: crashed.append((str(error), name)))
        tasks.spawn(faulty(), "faulty")
        tasks.spawn(asyncio.sleep(60), "sleeper")
        await asyncio.sleep(0.01)
        await tasks.end()

    asyncio.run(main())
    assert crashed == [("ours", "faulty")]


def test_a_pause_ends_with_its_event_or_its_time() -> None:
    async def main() -> None:
        event = asyncio.Event()
        await pause(event, 0.01)
        asyncio.get_running_loop().call_soon(event.set)
        await pause(event, 60)

    asyncio.run(asyncio.wait_for(main(), 5))
