"""The wheel builds, contains the right files, and works in a clean environment without any framework."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

from daemon import ROOT, Daemon

PACKAGE = ROOT / "clients" / "python"
USE = """
import sys, thresher_client
from thresher_client import Client

with Client(sys.argv[1]) as client:
    print(client.compress("Who wrote it?", ["Ann wrote it. It rained."]).context)
for framework in ("langchain", "llama_index", "haystack"):
    try:
        __import__("thresher_client." + framework)
    except ImportError as error:
        print(error)
print([name for name in ("pydantic", "langchain_core", "llama_index", "haystack") if name in sys.modules])
print(thresher_client.__file__)
"""


def run(*command: object, timeout_s: float = 180.0) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.work = Path(work.name)
        # The requirements of the tests include hatchling, the build backend.
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", self.work, PACKAGE)
        (self.wheel,) = self.work.glob("thresher_client-*-py3-none-any.whl")

    def test_the_wheel_contains_types_and_licence_and_no_tests(self) -> None:
        names = zipfile.ZipFile(self.wheel).namelist()
        self.assertIn("thresher_client/py.typed", names)
        self.assertTrue([name for name in names if name.endswith("LICENSE")])
        self.assertEqual({name.split("/")[0].split("-")[0] for name in names}, {"thresher_client"})
        self.assertFalse([name for name in names if "test" in name])

    def test_the_wheel_works_in_a_clean_environment(self) -> None:
        daemon = Daemon()
        self.addCleanup(daemon.stop)
        home = self.work / "venv"
        venv.create(home, with_pip=False, symlinks=True)
        python = home / "bin" / "python"
        packages = run(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        run(sys.executable, "-m", "pip", "install", "-q", "--root-user-action=ignore", "--target", packages, self.wheel)
        lines = run(python, "-I", "-c", USE, daemon.url).splitlines()
        self.assertEqual(lines[0], "[1] Ann wrote it.")
        self.assertEqual(
            lines[1:4],
            [
                f"the {name} adapter needs: pip install 'thresher-client[{extra}]'"
                for name, extra in [("LangChain", "langchain"), ("LlamaIndex", "llama-index"), ("Haystack", "haystack")]
            ],
        )
        self.assertEqual(lines[4], "[]")
        self.assertTrue(lines[5].startswith(str(home)))


if __name__ == "__main__":
    unittest.main()
