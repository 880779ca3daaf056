"""Helper of scripts/gpu.sh.

    gpu.py compare A.json B.json [--json FILE]     prints the largest difference of each measure of two reports of `thresher eval`
    gpu.py agree THRESHER EXACT MODEL FILE.jsonl...
                                                   asks a daemon with EXACT on the CPU and one with MODEL on the GPU the same questions, and
                                                   prints how far their scores differ, and how often their answers do
    gpu.py lengths THRESHER REQUEST.json           asks questions of many lengths about cached chunks, and prints how long the answers take
    gpu.py two-daemons THRESHER REQUEST.json       starts two daemons with the settings of the environment; both answer the request
    gpu.py busy THRESHER REQUEST.json              fills the memory of the GPU before and after a daemon starts, and prints what it says
    gpu.py executable NAME                         reads messages of Cargo, and prints the path of the test program NAME
"""

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import daemon as daemons  # noqa: E402

# Names of the entries of lists in reports.
NAMES = ("kind", "name", "method", "division")
# Free memory that `busy` leaves, in bytes: not enough for a model with its batches.
FREE_BYTES = 64 << 20


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


def ask(served, path, body):
    """Sends a request, and returns the status and the answer, which of an error is its description."""
    post = urllib.request.Request(f"{served.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(post, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def answer(served, row):
    """Returns the scores of the chunks of a row, and what a user sees: which chunk each part of the row's answer came from, or the context."""
    chunks = [{"id": str(at), "title": chunk.get("title"), "text": chunk["text"]} for at, chunk in enumerate(row["chunks"])]
    if "answer" in row:
        status, found = ask(served, "/v1/attribute", {"answer": row["answer"], "query": row.get("query"), "chunks": chunks})
        parts = found.get("parts", [])
        scores = [source["score"] for part in parts for source in part["sources"]]
        seen = [(part["verdict"], [source["chunk"] for source in part["sources"] if source["cited"]]) for part in parts]
    else:
        body = {"query": row["query"], "chunks": chunks, "budget": {"ratio": 0.25}, "deadline_ms": 60_000}
        status, found = ask(served, "/v1/compress", body)
        scores, seen = [chunk["score"] for chunk in found.get("chunks", [])], found.get("context")
    assert status == 200, found
    return scores, seen


def agree(options):
    daemons.BINARY = str(options.thresher.resolve())
    served, report = [], []
    try:
        for model, device in ((options.exact, "cpu"), (options.model, options.device)):
            served.append(daemons.Daemon(THRESHER__MODEL__DIR=str(model), THRESHER__MODEL__DEVICE=device))
        for file in options.files:
            rows = [json.loads(line) for line in file.read_text().splitlines()[: options.rows]]
            answers = [[answer(daemon, row) for row in rows] for daemon in served]
            pairs = list(zip(*answers, strict=True))
            off = [abs(a - b) for (exact, _), (found, _) in pairs for a, b in zip(exact, found, strict=False)]
            same = sum(exact == found for (_, exact), (_, found) in pairs)
            report.append({"file": file.stem, "rows": len(rows), "same": same, "score_off_max": max(off), "score_off_mean": sum(off) / len(off)})
    finally:
        for daemon in served:
            daemon.stop()
    print(f"{options.model} on {options.device}, beside {options.exact} on the CPU")
    for found in report:
        print("  {file:16} {same:3} of {rows:3} answers the same; scores off by {score_off_max:.1e} at most, {score_off_mean:.1e} on average".format(**found))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def lengths(options):
    """Each length is new once. What is prepared for a length when it comes first must not take long."""
    daemons.BINARY = str(options.thresher.resolve())
    request = json.loads(options.request.read_text())
    words = " ".join(chunk["text"] for chunk in request["chunks"]).split()
    served, times = daemons.Daemon(), {"first": [], "again": []}
    try:
        ask(served, "/v1/compress", request)
        for name in times:
            for count in range(3, 40):
                body = {**request, "query": " ".join(words[count : 2 * count])}
                started = time.perf_counter()
                status, found = ask(served, "/v1/compress", body)
                times[name].append(1e3 * (time.perf_counter() - started))
                assert status == 200, found
    finally:
        served.stop()
    found = {name: {"p50_ms": statistics.median(of), "max_ms": max(of)} for name, of in times.items()}
    for name, of in found.items():
        print("questions of 3 to 39 words, each length {:5}: p50 {p50_ms:.1f} ms, at most {max_ms:.1f} ms".format(name, **of))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def two_daemons(options):
    daemons.BINARY = str(options.thresher.resolve())
    request = json.loads(options.request.read_text())
    running = []
    try:
        for _ in range(2):
            running.append(daemons.Daemon())
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda served: ask(served, "/v1/compress", request), running))
    finally:
        for served in running:
            served.stop()
    contexts = [found.get("context", found) for _, found in answers]
    if contexts[0] != contexts[1]:
        sys.exit(f"error: the daemons answered differently:\n{contexts[0]}\n{contexts[1]}")
    print(f"two daemons answered at the same time, with the same context:\n{contexts[0]}")


def busy(options):
    # Only this command needs it.
    import torch

    daemons.BINARY = str(options.thresher.resolve())
    request = json.loads(options.request.read_text())
    # So many new texts that they need more memory than the start.
    texts = [{"id": str(at), "text": f"{at} " + "The tide rises and the tide falls. " * 40} for at in range(200)]

    def fill():
        free, _ = torch.cuda.mem_get_info()
        return torch.empty(free - FREE_BYTES, dtype=torch.uint8, device="cuda")

    served = daemons.Daemon()
    try:
        print("before:", ask(served, "/v1/compress", request)[0])
        taken = fill()
        status, found = ask(served, "/v1/compress", {"query": "When does the tide fall?", "chunks": texts, "deadline_ms": 60_000})
        print("with a full GPU:", status, json.dumps(found.get("error", found.get("degraded"))))
        said = subprocess.run([daemons.BINARY, "doctor"], cwd=ROOT, capture_output=True, text=True, timeout=120)
        print(f"a second daemon, doctor: exit status {said.returncode}")
        print("\n".join(line for line in said.stdout.splitlines() if "FAILED" in line))
        del taken
        torch.cuda.empty_cache()
        status, found = ask(served, "/v1/compress", {"query": "When does the tide fall?", "chunks": texts, "deadline_ms": 60_000})
        print("after:", status, json.dumps(found.get("error", found.get("degraded"))))
    finally:
        served.stop()


def executable(options):
    found = [json.loads(line) for line in sys.stdin]
    paths = [entry["executable"] for entry in found if entry.get("executable") and entry["target"]["name"] == options.name]
    print(paths[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("first", type=Path)
    command.add_argument("second", type=Path)
    command.add_argument("--json", type=Path)
    command.set_defaults(run=compare)
    command = commands.add_parser("agree")
    for name in ("thresher", "exact", "model"):
        command.add_argument(name, type=Path)
    command.add_argument("files", type=Path, nargs="+")
    command.add_argument("--device", default="cuda:0")
    command.add_argument("--rows", type=int, default=40, help="of each file")
    command.add_argument("--json", type=Path)
    command.set_defaults(run=agree)
    for name, run in (("lengths", lengths), ("two-daemons", two_daemons), ("busy", busy)):
        command = commands.add_parser(name)
        command.add_argument("thresher", type=Path)
        command.add_argument("request", type=Path)
        command.add_argument("--json", type=Path)
        command.set_defaults(run=run)
    command = commands.add_parser("executable")
    command.add_argument("name")
    command.set_defaults(run=executable)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
