"""I/O of the blocking client."""

from __future__ import annotations

import time

import httpx


def send(http: httpx.Client, request: httpx.Request, left_s: float) -> httpx.Response:
    """Sends the request once, and returns its whole answer within `left_s` seconds."""
    deadline = time.monotonic() + left_s
    response = http.send(request, stream=True)
    body = bytearray()
    try:
        # httpx limits the time of each read only. This limits an answer that arrives in many small reads.
        for piece in response.iter_raw():
            body += piece
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer took too long", request=request)
    finally:
        response.close()
    return httpx.Response(response.status_code, headers=response.headers, content=bytes(body), request=request)
