"""What a request is told does not depend on who else is served."""

import asyncio

from service.client import AsyncClient


def asked(client, number):
    """One of four kinds of request, different for every number."""
    text = " ".join(["the cat", "a dog ran", "on of the house"][: 1 + number % 3] * (1 + number % 5))
    kinds = (
        lambda: client.next_token(text, top_k=5),
        lambda: client.score([text, "the"], detail="token"),
        lambda: client.rerank([{"candidates": [{"text": text}, {"text": "a mat"}]}]),
        lambda: client.generate(text, seed=number, max_tokens=20, model="chars"),
    )
    return kinds[number % 4]()


def test_answers_under_load_are_those_of_an_idle_service(server):
    async def main():
        async with AsyncClient(server.url) as client:
            alone = [await asked(client, number) for number in range(60)]
            together = await asyncio.gather(*(asked(client, number) for number in range(60)))
            return alone, together

    alone, together = asyncio.run(main())
    assert alone == together
