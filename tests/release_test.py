"""Tests of scripts/release.py: notes of a version, archives that do not depend on the machine, checks of bills of materials, checksums."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import release  # noqa: E402

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- The newest thing.

## [0.2.0] - 2026-03-01

### Added

#### Models

- A model. See [a page](docs/models.md).

```
## [0.0.9] in a block that is indented by nothing
```

## [0.2.0-rc.1] - 2026-02-01

- A candidate.

## 0.1.0

- The first one.

## [0.0.1]

[0.2.0]: https://example.com/0.2.0
[0.1.0]: https://example.com/0.1.0
"""


class Notes(unittest.TestCase):
    def test_a_version_has_the_text_between_its_heading_and_the_next(self):
        changelog = CHANGELOG.replace("```\n## [0.0.9] in a block that is indented by nothing\n```\n\n", "")
        cases = {
            "Unreleased": "### Added\n\n- The newest thing.",
            "0.2.0": "### Added\n\n#### Models\n\n- A model. See [a page](docs/models.md).",
            "0.2.0-rc.1": "- A candidate.",
            "0.1.0": "- The first one.",
        }
        for version, expect in cases.items():
            with self.subTest(version):
                self.assertEqual(release.notes(changelog, version), expect)

    def test_headings_in_code_blocks_are_text(self):
        self.assertIn("## [0.0.9]", release.notes(CHANGELOG, "0.2.0"))

    def test_an_absent_or_empty_section_is_an_error(self):
        for version, expect in {"0.3.0": "no section [0.3.0], only Unreleased, 0.2.0", "0.0.1": "is empty", "0.2": "no section"}.items():
            with self.subTest(version), self.assertRaises(release.ReleaseError) as raised:
                release.notes(CHANGELOG, version)
            self.assertIn(expect, str(raised.exception))

    def test_the_changelog_of_this_repository_can_be_cut(self):
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        for version in release.versions(changelog):
            with self.subTest(version):
                self.assertTrue(version == "Unreleased" or release.notes(changelog, version))


class Version(unittest.TestCase):
    def test_only_the_tag_of_the_version_is_accepted(self):
        with mock.patch.object(release, "version", lambda: "1.2.3"):
            self.assertEqual(release.checked_version(None), "1.2.3")
            self.assertEqual(release.checked_version("v1.2.3"), "1.2.3")
            for tag in ("1.2.3", "v1.2.4", "v1.2.3-rc.1", "v1.2", ""):
                with self.subTest(tag), self.assertRaises(release.ReleaseError) as raised:
                    release.checked_version(tag)
                self.assertIn("1.2.3", str(raised.exception))


class Archive(unittest.TestCase):
    ENTRIES = {"b/z.txt": (b"z", 0o644), "thresher": (b"program", 0o755), "b/a/y.txt": (b"", 0o644)}

    def test_members_are_sorted_and_have_no_owner_and_one_time(self):
        with tarfile.open(fileobj=io.BytesIO(release.tar_gz("x-1", self.ENTRIES, 1000)), mode="r:gz") as tar:
            members = tar.getmembers()
            self.assertEqual(
                [(m.name, m.mode) for m in members],
                [("x-1", 0o755), ("x-1/b", 0o755), ("x-1/b/a", 0o755), ("x-1/b/a/y.txt", 0o644), ("x-1/b/z.txt", 0o644), ("x-1/thresher", 0o755)],
            )
            self.assertEqual({(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members}, {(0, 0, "", "", 1000)})
            self.assertEqual(tar.extractfile("x-1/thresher").read(), b"program")

    def test_the_order_of_entries_and_the_time_of_day_do_not_matter(self):
        first = release.tar_gz("x-1", self.ENTRIES, 1000)
        again = dict(reversed(list(self.ENTRIES.items())))
        with mock.patch("time.time", lambda: 5e9):
            self.assertEqual(release.tar_gz("x-1", again, 1000), first)
        self.assertNotEqual(release.tar_gz("x-1", self.ENTRIES, 1001), first)

    def test_a_binary_of_another_version_or_for_a_newer_glibc_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "thresher"
            with self.assertRaisesRegex(release.ReleaseError, "does not exist"):
                release.check_binary(binary, "x86_64-unknown-linux-gnu", "1.2.3")
            binary.write_text("#!/bin/sh\necho thresher 1.2.3\n")
            binary.chmod(0o755)
            release.check_binary(binary, "x86_64-unknown-linux-gnu", "1.2.3")
            with self.assertRaisesRegex(release.ReleaseError, "Cargo.toml has 1.2.4"):
                release.check_binary(binary, "x86_64-unknown-linux-gnu", "1.2.4")

            def listed(*command):
                return "thresher 1.2.3" if command[0] != "objdump" else "a GLIBC_2.9 x\nb (GLIBC_2.34) y\nc GLIBC_2.4 z\n"

            with mock.patch.object(release, "run", listed):
                for newest, accepted in {"2.28": False, "2.33": False, "2.34": True, "2.100": True}.items():
                    with self.subTest(newest), mock.patch.dict(os.environ, {"GLIBC_MAX": newest}):
                        if accepted:
                            release.check_binary(binary, "x86_64-unknown-linux-gnu", "1.2.3")
                        else:
                            with self.assertRaisesRegex(release.ReleaseError, "needs glibc 2.34"):
                                release.check_binary(binary, "x86_64-unknown-linux-gnu", "1.2.3")
                        release.check_binary(binary, "aarch64-apple-darwin", "1.2.3")


class Materials(unittest.TestCase):
    BILL = {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"name": "thresher", "version": "1.2.3"}},
        "components": [{"name": "a", "version": "1.0.0"}, {"name": "b", "version": "2.0.0"}],
    }

    def test_every_crate_has_to_be_listed_with_its_version(self):
        release.check_sbom(self.BILL, {("a", "1.0.0")}, "1.2.3", "t")
        with self.assertRaisesRegex(release.ReleaseError, "for t lacks b 2.0.1, c 1.0.0"):
            release.check_sbom(self.BILL, {("a", "1.0.0"), ("b", "2.0.1"), ("c", "1.0.0")}, "1.2.3", "t")
        with self.assertRaisesRegex(release.ReleaseError, "does not describe thresher 1.2.4"):
            release.check_sbom(self.BILL, set(), "1.2.4", "t")


class Checksums(unittest.TestCase):
    def test_sha256sum_accepts_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            dist = Path(folder)
            with self.assertRaisesRegex(release.ReleaseError, "has no files"):
                release.checksums(dist)
            (dist / "b.tar.gz").write_bytes(b"b")
            (dist / "a.json").write_bytes(b"a")
            (dist / "SHA256SUMS.sigstore.json").write_bytes(b"signature")
            for _ in range(2):
                release.checksums(dist)
            expect = "".join("{}  {}\n".format(hashlib.sha256(name[:1].encode()).hexdigest(), name) for name in ("a.json", "b.tar.gz"))
            self.assertEqual((dist / "SHA256SUMS").read_text(), expect)
            subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


if __name__ == "__main__":
    unittest.main()
