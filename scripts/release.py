#!/usr/bin/env python3
"""The steps of a release that need no server: version, notes, archive, bill of materials and checksums. docs/releasing.md says how a
release is made, and scripts/release.sh runs the steps for one binary.

It needs only the standard library of Python 3.8 or later, cargo, and for the bill of materials git and cargo-cyclonedx.

  SOURCE_DATE_EPOCH   the time of all files in the archive, in seconds since 1970 (default: that of the last commit)
  GLIBC_MAX           the newest version of glibc that a Linux binary may need, such as 2.28 (default: not checked)
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "thresher"
DIST = ROOT / "dist"
# Manual pages, completions and licences. They stay here after an archive is made, for the Debian package.
GENERATED = ROOT / "target" / "release-files"

# The files of an archive, besides what the binary writes.
FILES = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "config/thresher.toml",
)
# Shells, and the name of the file that each looks for.
COMPLETIONS = {"bash": "thresher.bash", "zsh": "_thresher", "fish": "thresher.fish"}
LICENSES = "THIRD-PARTY-LICENSES.txt"
LICENSE_NAMES = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)

CYCLONEDX = "0.5.9"
CYCLONEDX_HINT = "install it with: cargo install cargo-cyclonedx@{} --locked".format(CYCLONEDX)
# In place of the folder of the sources, which differs from machine to machine.
SOURCES = "/thresher"


class ReleaseError(Exception):
    """An error with its cause and what to do."""


def main(arguments=None):
    options = parse(arguments)
    try:
        options.run(options)
    except ReleaseError as error:
        sys.exit("error: {}".format(error))


def parse(arguments):
    parser = argparse.ArgumentParser(description="The steps of a release that need no server.")
    steps = parser.add_subparsers(dest="step", required=True)

    step = steps.add_parser("version", help="print the version of Cargo.toml; fail if TAG is not its tag")
    step.add_argument("tag", nargs="?")
    step.set_defaults(run=lambda o: print(checked_version(o.tag)))

    step = steps.add_parser("notes", help="print what CHANGELOG.md says about VERSION")
    step.add_argument("version")
    step.set_defaults(run=lambda o: print(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), o.version)))

    step = steps.add_parser("archive", help="write dist/thresher-VERSION-TARGET.tar.gz")
    step.add_argument("binary", type=Path)
    step.add_argument("target", help="the target that the binary was built for, such as x86_64-unknown-linux-gnu")
    step.set_defaults(run=lambda o: print(archive(o.binary, o.target).relative_to(ROOT)))

    step = steps.add_parser("sbom", help="write dist/thresher-VERSION-TARGET.cdx.json, a bill of materials in CycloneDX")
    step.add_argument("target")
    step.set_defaults(run=lambda o: print(sbom(o.target).relative_to(ROOT)))

    step = steps.add_parser("checksums", help="write dist/SHA256SUMS over all files in dist")
    step.set_defaults(run=lambda o: print(checksums(DIST).relative_to(ROOT)))
    return parser.parse_args(arguments)


def run(*command, cwd=ROOT):
    """Returns the standard output of a command."""
    try:
        return subprocess.run([str(part) for part in command], cwd=str(cwd), check=True, stdout=subprocess.PIPE).stdout.decode()
    except FileNotFoundError:
        raise ReleaseError("{} not found: install it".format(command[0]))
    except subprocess.CalledProcessError as error:
        raise ReleaseError("`{}` failed with status {}".format(" ".join(map(str, command)), error.returncode))


# ---------------------------------------------------------------- version and notes


def version():
    """Returns the version of the program in Cargo.toml."""
    return next(p["version"] for p in metadata()["packages"] if p["name"] == NAME and p["source"] is None)


def metadata(*arguments):
    return json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", *arguments))


def checked_version(tag):
    current = version()
    if tag is not None and tag != "v" + current:
        raise ReleaseError(
            "the tag is {}, but the version in Cargo.toml is {}: set the version first, or name the tag v{}".format(tag, current, current)
        )
    return current


def notes(changelog, wanted):
    """Returns the section of a version in a changelog, without its heading."""
    sections = versions(changelog)
    if wanted not in sections:
        names = ", ".join(sections) or "none"
        raise ReleaseError("CHANGELOG.md has no section [{}], only {}: rename [Unreleased] to it, with the date".format(wanted, names))
    if not sections[wanted]:
        raise ReleaseError("the section [{}] of CHANGELOG.md is empty".format(wanted))
    return sections[wanted]


def versions(changelog):
    """Returns the text of each section of a changelog, {version: text}. Links that are defined after the last section belong to none."""
    sections, lines, is_code = {}, [], False
    for line in changelog.splitlines():
        is_code ^= line.lstrip().startswith("```")
        heading = None if is_code else re.match(r"## \[?([^\s\]]+)", line)
        if heading:
            lines = sections.setdefault(heading[1], [])
        elif is_code or not re.match(r"\[[^\]]+\]:\s+\S+\s*$", line):
            lines.append(line)
    return {version: "\n".join(lines).strip() for version, lines in sections.items()}


# ---------------------------------------------------------------- archive


def archive(binary, target):
    """Writes the archive of a binary. The same binary and the same sources give the same bytes."""
    current = version()
    check_binary(binary, target, current)
    write_generated(binary)
    (GENERATED / LICENSES).write_text(licenses(target), encoding="utf-8")

    name = "{}-{}-{}".format(NAME, current, target)
    entries = {NAME: (binary.read_bytes(), 0o755)}
    for file in FILES:
        entries[file] = ((ROOT / file).read_bytes(), 0o644)
    for file in sorted(GENERATED.rglob("*")):
        if file.is_file():
            entries[file.relative_to(GENERATED).as_posix()] = (file.read_bytes(), 0o644)

    DIST.mkdir(exist_ok=True)
    path = DIST / (name + ".tar.gz")
    path.write_bytes(tar_gz(name, entries, epoch()))
    return path


def check_binary(binary, target, current):
    if not binary.is_file():
        raise ReleaseError("{} does not exist: build it with cargo build --release --locked".format(binary))
    found = run(binary.resolve(), "--version").strip()
    if found != "{} {}".format(NAME, current):
        raise ReleaseError("`{} --version` prints {!r}, but Cargo.toml has {}: build it again".format(binary, found[:40], current))
    glibc_max = os.environ.get("GLIBC_MAX")
    if glibc_max and target.endswith("-linux-gnu"):
        needed = max((numbers(v) for v in re.findall(r"GLIBC_(\d[\d.]*)", run("objdump", "-T", binary.resolve()))), default=())
        if needed > numbers(glibc_max):
            raise ReleaseError(
                "{} needs glibc {}; the limit is {} (GLIBC_MAX): build it on an older system".format(binary, ".".join(map(str, needed)), glibc_max)
            )


def numbers(text):
    return tuple(int(part) for part in text.split("."))


def write_generated(binary):
    """Has the binary write its manual pages and completions. It has to run on this machine."""
    shutil.rmtree(str(GENERATED), ignore_errors=True)
    (GENERATED / "man").mkdir(parents=True)
    (GENERATED / "completions").mkdir()
    run(binary.resolve(), "man", GENERATED / "man")
    for shell, file in COMPLETIONS.items():
        (GENERATED / "completions" / file).write_text(run(binary.resolve(), "completions", shell), encoding="utf-8")
    empty = [f.name for f in GENERATED.rglob("*") if f.is_file() and not f.stat().st_size]
    if empty or not list((GENERATED / "man").iterdir()):
        raise ReleaseError("{} wrote no manual pages, or empty files: {}".format(binary, ", ".join(empty)))


def epoch():
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))


def tar_gz(folder, entries, mtime):
    """Returns an archive in which entries, {path: (bytes, mode)}, lie in a folder. Names are sorted, and nothing depends on the machine."""
    folders = {folder}
    for path in entries:
        parts = path.split("/")[:-1]
        folders.update("/".join([folder] + parts[: i + 1]) for i in range(len(parts)))
    members = [(path, None, 0o755) for path in folders]
    members += [("{}/{}".format(folder, path), data, mode) for path, (data, mode) in entries.items()]

    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=mtime) as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path, data, mode in sorted(members, key=lambda member: member[0]):
                member = tarfile.TarInfo(path)
                member.mode, member.mtime = mode, mtime
                member.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
                member.size = len(data or b"")
                tar.addfile(member, None if data is None else io.BytesIO(data))
    return packed.getvalue()


# ---------------------------------------------------------------- what the binary consists of


def crates(target):
    """Returns the (name, version) of every crate that the binary for a target is built from, besides its own."""
    listed = run("cargo", "tree", "--locked", "-p", NAME, "-e", "normal,build", "--target", target, "--prefix", "none", "--format", "{p}")
    found = {tuple(re.match(r"(\S+) v(\S+)", line).groups()) for line in listed.splitlines() if line.strip()}
    return {crate for crate in found if crate[0] != NAME}


def licenses(target):
    """Returns the licences of all crates of a binary, each text once."""
    built_from = crates(target)
    packages = [p for p in metadata()["packages"] if (p["name"], p["version"]) in built_from and p["source"] is not None]
    users = {}  # the crates of each licence text
    without = []
    for package in sorted(packages, key=lambda p: (p["name"], p["version"])):
        name = "{} {} ({})".format(package["name"], package["version"], package["license"] or package["license_file"])
        folder = Path(package["manifest_path"]).parent
        texts = [f.read_text(encoding="utf-8", errors="replace").strip() for f in sorted(folder.iterdir())
                 if f.is_file() and LICENSE_NAMES.match(f.name)]
        for text in texts:
            users.setdefault(text, []).append(name)
        if not texts:
            without.append(name)
    parts = ["The program `{}` contains the following crates. Their sources are on crates.io.".format(NAME)]
    if without:
        parts.append("Crates that come without the text of their licence:\n\n" + "\n".join(without))
    for text, names in users.items():
        parts.append("\n".join(names) + "\n\n" + text)
    return ("\n\n" + "-" * 80 + "\n\n").join(parts) + "\n"


def sbom(target):
    """Writes the bill of materials of the binary for a target."""
    # cargo-cyclonedx writes a file beside each Cargo.toml, so it gets a copy of the sources.
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        for name in run("git", "ls-files", "-z").split("\0"):
            source = ROOT / name
            if name and source.is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(source), str(folder / name))
        try:
            found = run("cargo", "cyclonedx", "--version", cwd=folder).split()[-1]
        except ReleaseError:
            raise ReleaseError("cargo-cyclonedx not found: " + CYCLONEDX_HINT)
        if found != CYCLONEDX:
            raise ReleaseError("cargo-cyclonedx is {}, but this release is described with {}: {}".format(found, CYCLONEDX, CYCLONEDX_HINT))
        os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
        run("cargo", "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--target", target,
            "--override-filename", "bill", cwd=folder)
        text = (folder / "bill.json").read_text(encoding="utf-8").replace(str(folder), SOURCES)
    check_sbom(json.loads(text), crates(target), version(), target)
    DIST.mkdir(exist_ok=True)
    path = DIST / "{}-{}-{}.cdx.json".format(NAME, version(), target)
    path.write_text(text, encoding="utf-8")
    return path


def check_sbom(bill, built_from, current, target):
    """Compares a bill of materials with the crates that cargo builds the binary from."""
    described = bill["metadata"]["component"]
    if (bill["bomFormat"], described["name"], described["version"]) != ("CycloneDX", NAME, current):
        raise ReleaseError("the bill of materials does not describe {} {}".format(NAME, current))
    missing = built_from - {(c["name"], c["version"]) for c in bill["components"]}
    if missing:
        raise ReleaseError("the bill of materials for {} lacks {}".format(target, ", ".join(" ".join(crate) for crate in sorted(missing))))


# ---------------------------------------------------------------- checksums


def checksums(dist):
    """Writes SHA256SUMS, which `sha256sum --check` and `shasum --algorithm 256 --check` read."""
    path = dist / "SHA256SUMS"
    files = sorted(f for f in dist.iterdir() if f.is_file() and not f.name.startswith(path.name))
    if not files:
        raise ReleaseError("{} has no files: make an archive first".format(dist))
    path.write_text("".join("{}  {}\n".format(hashlib.sha256(f.read_bytes()).hexdigest(), f.name) for f in files), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
