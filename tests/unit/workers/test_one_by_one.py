"""Turns that workers, and requests of one worker, wait for."""

import asyncio
from pathlib import Path

import pytest

from service.workers.broadcast import CrossProcessLock
from service.workers.pool import SharedStatus, WorkerPool


def crew(number, folder):
    return WorkerPool(number, 2, "host", SharedStatus(2), folder, Path(), -1)


@pytest.mark.parametrize("others", [0, 1], ids=["the same worker", "another"])
def test_one_has_the_turn_at_a_time(tmp_path, others):
    log = []

    async def change(worker, name):
        async with CrossProcessLock(crew(worker, tmp_path)).hold():
            log.append(f"{name} begins")
            await asyncio.sleep(0.05)
            log.append(f"{name} ends")

    async def main():
        await asyncio.gather(change(0, "a"), change(others, "b"))

    asyncio.run(main())
    assert log in (
        ["a begins", "a ends", "b begins", "b ends"],
        ["b begins", "b ends", "a begins", "a ends"],
    )


def test_one_that_gives_up_gives_the_turn_back(tmp_path):
    async def main():
        ours = CrossProcessLock(crew(0, tmp_path))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), ours.hold():
                await asyncio.sleep(10)
        async with asyncio.timeout(5), ours.hold():
            return True

    assert asyncio.run(main())
