"""Attribute the parts of an answer to chunks while the LLM streams it."""

import asyncio
from collections.abc import AsyncIterator

from thresher_client import AsyncClient

CHUNKS = [{"id": "history", "text": "Cape Orrin Light was completed in 1874. The keeper had two dogs."}]


async def llm() -> AsyncIterator[str]:
    """Yields pieces of text; put the stream of your LLM here."""
    for piece in ["The light was comp", "leted in 1874. ", "It was painted green."]:
        yield piece


async def main() -> None:
    async with AsyncClient() as client, client.attribute_stream(llm(), CHUNKS) as parts:
        async for part in parts:
            print(part.verdict, part.text)


asyncio.run(main())
