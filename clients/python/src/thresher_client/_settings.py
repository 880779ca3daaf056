"""Settings that both clients have in common."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import httpx

from ._calls import Call
from ._retry import Retries

BASE_URL_DEFAULT = "http://127.0.0.1:8080"

T = TypeVar("T")

try:
    _VERSION = version("thresher-client")
except PackageNotFoundError:
    _VERSION = "0"


@dataclass(frozen=True)
class Settings:
    """The daemon's address, the headers of every request, and the limits of time and retries."""

    base_url: str
    headers: Mapping[str, str]
    timeout_s: float
    connect_timeout_s: float
    retries: Retries

    @classmethod
    def from_arguments(
        cls,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        retries: Retries | None,
    ) -> Settings:
        """Checks the arguments, and takes those that are None from the environment (THRESHER_URL, THRESHER_API_KEY).

        Raises a `ValueError` for an unusable address, time or key.
        """
        base_url = (base_url or os.environ.get("THRESHER_URL") or BASE_URL_DEFAULT).rstrip("/")
        try:
            parsed = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise ValueError(f"base_url {base_url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"base_url {base_url!r} must begin with http:// or https:// and a host, such as {BASE_URL_DEFAULT}")
        if not timeout_s > 0 or not connect_timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s} and connect_timeout_s is {connect_timeout_s}; both must be greater than 0")
        headers = {"User-Agent": f"thresher-client/{_VERSION}"}
        api_key = api_key or os.environ.get("THRESHER_API_KEY")
        if api_key:
            # A key that was read from a file often ends with a line break.
            api_key = api_key.strip()
            if not (api_key.isascii() and api_key.isprintable()):
                raise ValueError("api_key must be one line of printable ASCII characters")
            headers["Authorization"] = f"Bearer {api_key}"
        return cls(base_url, headers, timeout_s, connect_timeout_s, retries or Retries())

    @property
    def trust_env(self) -> bool:
        """Whether httpx uses the proxies of the environment. It does not for an address of this machine."""
        host = httpx.URL(self.base_url).host
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"

    def request(self, call: Call[T]) -> httpx.Request:
        """Returns the HTTP request of `call`."""
        headers = dict(self.headers)
        content = call.content()
        if content is not None:
            headers["Content-Type"] = "application/json"
        return httpx.Request(
            call.method, self.base_url + call.path, params=call.params, headers=headers, content=content
        )

    def timeout(self, left_s: float) -> dict[str, float | None]:
        """Returns the timeouts of one attempt that has `left_s` seconds left, in the format of httpx."""
        return httpx.Timeout(left_s, connect=min(self.connect_timeout_s, left_s)).as_dict()
