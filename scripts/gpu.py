"""Helper of scripts/gpu.sh.

    gpu.py compare A.json B.json [--json FILE]     prints the largest difference of each measure of two reports of `thresher eval`
    gpu.py two-daemons THRESHER REQUEST.json       starts two daemons with the settings of the environment; both answer the request
"""

import argparse
import concurrent.futures
import json
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Names of the entries of lists in reports.
NAMES = ("kind", "name", "method", "division")


def numbers(report, path=()):
    """Yields the path and the value of each number. Entries of a list are named if they have a name."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield from numbers(value, (*path, key))
    elif isinstance(report, list):
        for at, value in enumerate(report):
            name = next((value[key] for key in NAMES if isinstance(value, dict) and key in value), at)
            yield from numbers(value, (*path, str(name)))
    elif isinstance(report, (int, float)) and not isinstance(report, bool):
        yield path, report


def compare(options):
    first, second = (dict(numbers(json.loads(file.read_text()))) for file in (options.first, options.second))
    if not first or first.keys() != second.keys():
        sys.exit(f"error: {options.first} and {options.second} do not have the same measures")
    worst = {}
    for path, value in first.items():
        # The last name is the measure; what comes before says where it was measured.
        measure = next(part for part in reversed(path) if not part.isdigit()) + (", interval" if "ci95" in path else "")
        difference = abs(value - second[path])
        if measure not in worst or difference > worst[measure]["difference"]:
            worst[measure] = {"difference": difference, "at": "/".join(path), "values": [value, second[path]]}
    print(f"largest differences between {options.first.name} and {options.second.name}, of {len(first)} numbers")
    for measure, found in worst.items():
        place = "" if found["difference"] == 0 else "  {} {} at {}".format(*found["values"], found["at"])
        print(f"  {measure:24} {found['difference']:.2g}{place}")
    if options.json:
        options.json.write_text(json.dumps(worst, indent=2) + "\n")


def two_daemons(options):
    sys.path.insert(0, str(ROOT / "tests"))
    import daemon as daemons

    daemons.BINARY = str(options.thresher.resolve())
    request = options.request.read_bytes()

    def answer(served):
        post = urllib.request.Request(f"{served.url}/v1/compress", request, {"content-type": "application/json"})
        with urllib.request.urlopen(post, timeout=60) as response:
            return json.loads(response.read())["context"]

    running = []
    try:
        for _ in range(2):
            running.append(daemons.Daemon())
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            contexts = list(threads.map(answer, running))
    finally:
        for served in running:
            served.stop()
    if contexts[0] != contexts[1]:
        sys.exit(f"error: the daemons answered differently:\n{contexts[0]}\n{contexts[1]}")
    print(f"two daemons answered at the same time, with the same context:\n{contexts[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("first", type=Path)
    command.add_argument("second", type=Path)
    command.add_argument("--json", type=Path)
    command.set_defaults(run=compare)
    command = commands.add_parser("two-daemons")
    command.add_argument("thresher", type=Path)
    command.add_argument("request", type=Path)
    command.set_defaults(run=two_daemons)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
