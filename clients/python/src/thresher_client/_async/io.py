"""I/O of the asynchronous client, on asyncio and trio."""

from __future__ import annotations

import anyio
import httpx


async def send(http: httpx.AsyncClient, request: httpx.Request, left_s: float) -> httpx.Response:
    """Sends the request once, and returns its whole answer within `left_s` seconds."""
    try:
        with anyio.fail_after(left_s):
            return await http.send(request)
    except TimeoutError as error:
        raise httpx.ReadTimeout("the answer took too long", request=request) from error
