"""The slot files of llama.cpp, read by an independent reader. tests/kv_engines lets llama.cpp restore them."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from daemon import ROOT
from kv_files import HEAD_DIM, KV_HEADS, LAYERS, element, export_file
from thresher_client import KvExportError, llama_cpp
from thresher_client.llama_cpp import fingerprint, write_slot

GGUF = ROOT / "models" / "tiny" / "gguf" / "tiny.gguf"
IDS = [1, 5, 6, 7, 8]


def read_slot(data: bytes) -> tuple[list[int], list[tuple[int, ...]], list[list[list[float]]]]:
    """Returns the token ids, the cells, and the rows of each layer's keys and then of each layer's values, `[row][element]`."""
    opened = BytesIO(data)

    def take(form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, opened.read(struct.calcsize("<" + form)))

    magic, version, count = take("4sII")
    assert (magic, version) == (b"qsgg", 4)
    ids = list(take(f"{count}i"))
    streams, cells = take("II")
    assert (streams, cells) == (1, count)
    positions = [take("iIi") for _ in range(cells)]
    transposed, layers, *rotated = take("IIII")
    assert (transposed, rotated) == (0, [0, 0])
    planes = []
    for _ in range(2 * layers):
        kind, row_bytes = take("iQ")
        assert kind == 1
        planes.append([list(take(f"{row_bytes // 2}e")) for _ in range(cells)])
    assert opened.read() == b""
    return ids, positions, planes


def gguf_file(*pairs: tuple[str, int, bytes]) -> bytes:
    """Returns a GGUF file with this metadata: name, number of the type, and bytes of the value."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    return head + b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in pairs)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


class SlotFiles(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = Path(work.name)
        self.path = self.folder / "slot.bin"

    def export(self, dtype: str = "F32", **metadata: str) -> bytes:
        return export_file(IDS, dtype, **{"fingerprint": fingerprint(GGUF), **metadata})

    def check_refused(self, code: str, export: bytes | Path, gguf: Path = GGUF) -> str:
        with self.assertRaises(KvExportError) as raised:
            write_slot(export, self.path, gguf)
        self.assertEqual(raised.exception.code, code)
        self.assertEqual([path for path in self.folder.iterdir() if "slot.bin" in path.name], [])
        return raised.exception.message

    def test_the_layout(self) -> None:
        expected = []
        for kind in (0, 1):
            for layer in range(LAYERS):
                # In each head, llama.cpp has the two dimensions of a pair next to each other.
                dims = [0, 2, 1, 3] if kind == 0 else [0, 1, 2, 3]
                expected.append(
                    [[element(kind, layer, head, token, dim) for head in range(KV_HEADS) for dim in dims] for token in range(len(IDS))]
                )
        self.assertEqual(HEAD_DIM, 4)
        for dtype in ("F32", "F16", "BF16"):
            with self.subTest(dtype):
                self.assertEqual(write_slot(self.export(dtype), self.path, GGUF), IDS)
                ids, cells, planes = read_slot(self.path.read_bytes())
                self.assertEqual(ids, IDS)
                self.assertEqual(cells, [(position, 1, 0) for position in range(len(IDS))])
                self.assertEqual(planes, expected)

    def test_a_file_on_disk(self) -> None:
        (self.folder / "export").write_bytes(self.export())
        self.assertEqual(write_slot(self.folder / "export", str(self.path), str(GGUF)), IDS)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["export", "slot.bin"])

    def test_other_models(self) -> None:
        self.assertIn("0000", self.check_refused("model_mismatch", self.export(fingerprint="0" * 64)))
        for name, data, says in [
            ("qwen2", gguf_file(("general.architecture", 8, text("qwen2"))), "qwen2"),
            (
                "behind other metadata",
                gguf_file(
                    ("a", 4, struct.pack("<I", 1)),
                    ("b", 8, text("b")),
                    ("c", 9, struct.pack("<IQ", 4, 3) + bytes(12)),
                    ("d", 9, struct.pack("<IQ", 8, 2) + text("x") + text("yy")),
                    ("e", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 5) + bytes(5)),
                    ("general.architecture", 8, text("gemma3")),
                ),
                "gemma3",
            ),
            ("none", gguf_file(("a", 4, struct.pack("<I", 1))), "not a GGUF file with an architecture"),
            ("another type", gguf_file(("general.architecture", 4, struct.pack("<I", 1))), "not a GGUF file"),
            ("an unknown type", gguf_file(("a", 99, b"")), "not a GGUF file"),
            ("cut", GGUF.read_bytes()[:30], "not a GGUF file"),
            ("empty", b"", "not a GGUF file"),
            ("another format", b"GGML" + bytes(20), "not a GGUF file"),
        ]:
            with self.subTest(name):
                (self.folder / "other.gguf").write_bytes(data)
                self.assertIn(says, self.check_refused("architecture_unsupported", self.export(), self.folder / "other.gguf"))
        with self.assertRaises(FileNotFoundError):
            write_slot(self.export(), self.path, self.folder / "nowhere.gguf")

    def test_other_exports(self) -> None:
        self.check_refused("policy_unsupported", self.export(policy="heads"))
        self.check_refused("kv_export_invalid", self.export(format="thresher-kv/2"))
        self.check_refused("kv_export_invalid", self.export()[:-1])
        (self.folder / "cut").write_bytes(self.export()[:100])
        self.check_refused("kv_export_invalid", self.folder / "cut")
        large = self.export().replace(struct.pack("<f", element(0, 1, 3, 1, 3)), struct.pack("<f", 70_000.0))
        self.assertIn("half precision", self.check_refused("value_too_large", large))

    def test_folders_that_cannot_be_written(self) -> None:
        self.path = self.folder / "nowhere" / "slot.bin"
        with self.assertRaises(KvExportError) as raised:
            write_slot(self.export(), self.path, GGUF)
        self.assertEqual((raised.exception.code, "No such file" in raised.exception.message), ("slot_unwritable", True))
        self.path = self.folder / "slot.bin"
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with patch.object(llama_cpp, "_rows", side_effect=full):
            self.assertIn("No space left", self.check_refused("slot_unwritable", self.export()))

    def test_a_failure_leaves_the_file_that_was_there(self) -> None:
        write_slot(self.export(), self.path, GGUF)
        before = self.path.read_bytes()
        with patch.object(llama_cpp, "_rows", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            write_slot(self.export("F16"), self.path, GGUF)
        self.assertEqual(self.path.read_bytes(), before)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["slot.bin"])

    def test_without_numpy(self) -> None:
        program = "import sys; sys.modules['numpy'] = None\ntry: import thresher_client.llama_cpp\nexcept ImportError as error: print(error)"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.stdout.strip(), "the llama.cpp adapter needs: pip install 'thresher-client[llama-cpp]'", run.stderr)


if __name__ == "__main__":
    unittest.main()
