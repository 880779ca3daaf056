"""Starts the daemon for tests of its clients: on free ports, without files on disk.

THRESHER_TEST_BINARY is the path of the binary (default: target/debug/thresher). The daemon also needs THRESHER_RUNTIME_LIB.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("THRESHER_TEST_BINARY", str(ROOT / "target/debug/thresher"))
START_S = 120
STOP_S = 60
LOG_LINES_MAX = 50


def unused_port() -> int:
    """A port on which nothing listens. It stays bound until the tests end, so that no other program can listen there, either."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    atexit.register(holder.close)
    port: int = holder.getsockname()[1]
    return port


def eventually(name: str, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits until the condition holds. Fails with its name after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{name}: not so after {timeout_s} s")
        time.sleep(0.02)


class Daemon:
    """A daemon that is ready. `settings` are environment variables."""

    def __init__(self, **settings: str) -> None:
        own = {
            # The system chooses free ports, and the daemon logs them.
            "THRESHER__HTTP__LISTEN": "127.0.0.1:0",
            "THRESHER__ADMIN__LISTEN": "127.0.0.1:0",
            "THRESHER__BLOCKS__DIR": "",
            "THRESHER__REGISTRY__DIR": "",
            "THRESHER__ORIGINALS__DIR": "",
        }
        self.url, self.admin = "", 0
        self._log: collections.deque[str] = collections.deque(maxlen=LOG_LINES_MAX)
        self._listening = threading.Event()
        self.process = subprocess.Popen(
            [BINARY, "serve"], cwd=ROOT, env={**os.environ, **own, **settings}, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            eventually("the daemon is ready", self._is_ready, START_S)
        except AssertionError:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            raise

    def _read_log(self) -> None:
        """Keeps the last lines of the log, and reads the addresses from the line that has them."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._log.append(line)
                if not self._listening.is_set() and '"listening"' in line:
                    event = json.loads(line)
                    self.url, self.admin = f"http://{event['http']}", int(event["admin"].rsplit(":", 1)[1])
                    self._listening.set()

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            self._reader.join()
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{''.join(self._log)}")
        if not self._listening.is_set():
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def pause(self) -> None:
        """Stops the process with SIGSTOP, and returns when it is stopped: its ports stay open, and it answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        # The signal takes effect a little later than it is sent. This waits until every thread of the process has stopped.
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise AssertionError(f"the daemon ended with status {status}:\n{''.join(self._log)}")

    def resume(self) -> None:
        """Continues a process that `pause` has stopped."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process and waits until it has exited."""
        self.process.terminate()
        try:
            self.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join()
