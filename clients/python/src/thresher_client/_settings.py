"""What both clients are made with."""

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
    """Where the daemon is, and how long and how often it is asked."""

    base_url: str
    headers: Mapping[str, str]
    timeout_s: float
    connect_timeout_s: float
    retries: Retries

    @classmethod
    def of(
        cls,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        retries: Retries | None,
    ) -> Settings:
        """Arguments first, then the environment: THRESHER_URL and THRESHER_API_KEY."""
        base_url = (base_url or os.environ.get("THRESHER_URL") or BASE_URL_DEFAULT).rstrip("/")
        try:
            parsed = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise ValueError(f"base_url {base_url!r} is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"base_url {base_url!r} does not begin with http:// or https:// and a host")
        if not timeout_s > 0 or not connect_timeout_s > 0:
            raise ValueError("timeout_s and connect_timeout_s are over 0")
        headers = {"User-Agent": f"thresher-client/{_VERSION}"}
        api_key = api_key or os.environ.get("THRESHER_API_KEY")
        if api_key:
            # A key that is read from a file has a line break behind it.
            api_key = api_key.strip()
            if not (api_key.isascii() and api_key.isprintable()):
                raise ValueError("api_key is not one line of ASCII")
            headers["Authorization"] = f"Bearer {api_key}"
        return cls(base_url, headers, timeout_s, connect_timeout_s, retries or Retries())

    @property
    def trust_env(self) -> bool:
        """Whether proxies of the environment are meant for it: not for a sidecar on this machine."""
        host = httpx.URL(self.base_url).host
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"

    def request(self, call: Call[T]) -> httpx.Request:
        """As it is sent."""
        headers = dict(self.headers)
        content = call.content()
        if content is not None:
            headers["Content-Type"] = "application/json"
        return httpx.Request(
            call.method, self.base_url + call.path, params=call.params, headers=headers, content=content
        )

    def timeout(self, left_s: float) -> dict[str, float | None]:
        """Of one attempt, as httpx takes it."""
        return httpx.Timeout(left_s, connect=min(self.connect_timeout_s, left_s)).as_dict()
