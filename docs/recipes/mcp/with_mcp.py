"""Call the tools of a running daemon with the official client of the Model Context Protocol."""

import asyncio
import os

from mcp import Client

URL = os.environ.get("THRESHER_URL", "http://127.0.0.1:8080")
CHUNKS = [
    {"id": "history", "text": "Cape Orrin Light was completed in 1874. Its keeper had a dog."},
    {"id": "ferry", "text": "The ferry to Point Hale leaves at noon."},
]


async def main():
    async with Client(f"{URL}/mcp") as client:
        result = await client.call_tool("compress", {"query": "When was the lighthouse completed?", "chunks": CHUNKS})
        print(result.content[0].text)


asyncio.run(main())
