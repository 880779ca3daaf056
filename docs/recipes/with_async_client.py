"""Attribute an answer while the LLM writes it."""

import asyncio
from collections.abc import AsyncIterator

from thresher_client import AsyncClient

CHUNKS = [{"id": "history", "text": "Cape Orrin Light was completed in 1874. The keeper had two dogs."}]


async def llm() -> AsyncIterator[str]:
    """Stands for the pieces of text that your LLM streams."""
    for piece in ["The light was comp", "leted in 1874. ", "It was painted green."]:
        yield piece


async def main() -> None:
    async with AsyncClient() as client, client.attribute_stream(llm(), CHUNKS) as parts:
        async for part in parts:
            print(part.supported, part.text)


asyncio.run(main())
