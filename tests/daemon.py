"""The daemon as tests of clients have it: on free ports, with nothing on disk.

`make test` says in THRESHER_TEST_BINARY where the binary is, and in THRESHER_RUNTIME_LIB where the runtime is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("THRESHER_TEST_BINARY", str(ROOT / "target/debug/thresher"))
START_S = 120


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Daemon:
    """A daemon that is ready; `settings` are those of its environment."""

    def __init__(self, **settings: str) -> None:
        public, self.admin = free_port(), free_port()
        own = {
            "THRESHER__HTTP__LISTEN": f"127.0.0.1:{public}",
            "THRESHER__ADMIN__LISTEN": f"127.0.0.1:{self.admin}",
            "THRESHER__BLOCKS__DIR": "",
            "THRESHER__REGISTRY__DIR": "",
            "THRESHER__ORIGINALS__DIR": "",
        }
        self.url = f"http://127.0.0.1:{public}"
        self.process = subprocess.Popen(
            [BINARY, "serve"], cwd=ROOT, env={**os.environ, **own, **settings}, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise AssertionError(f"the daemon does not become ready: {self.process.returncode}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether it says so."""
        try:
            answer = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=5)
            return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=30)
            raise
