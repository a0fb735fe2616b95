"""Waiting for so long and no longer."""

from __future__ import annotations

import asyncio

import pytest

from ddpdoctor.base.async_work import within


def test_it_gives_what_comes_and_raises_what_is_raised() -> None:
    async def gives() -> int:
        return 7

    async def raises() -> int:
        raise ValueError("odd")

    assert asyncio.run(within(5, gives())) == 7
    with pytest.raises(ValueError, match="odd"):
        asyncio.run(within(5, raises()))


def test_what_takes_longer_is_cancelled() -> None:
    ended = []

    async def sleeps() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        asyncio.run(within(0.01, sleeps()))
    assert ended


def test_a_cancellation_that_comes_with_the_answer_isn_t_lost() -> None:
    async def go() -> None:
        answered = asyncio.Event()
        waiting = asyncio.ensure_future(within(60, answered.wait()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered.set()
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(go())
