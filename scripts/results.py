#!/usr/bin/env python3
"""Fills figures of the documentation that are marked from docs/results/quality.json, so that each has one source.

    results.py gather FILE.json...    write docs/results/quality.json from what `thresher-lab --json FILE eval` has written, then fill
    results.py fill                   write the figures into the pages
    results.py check                  fail if a page has another figure than the results

A page marks what is filled with comments, which readers do not see. A table:

    <!-- results: compression -->
    ...
    <!-- /results -->

A figure with its number of digits, without and with the 95 % interval (SET | METHOD | MEASURE | DIGITS, and "interval"):

    <!-- results: hotpot | bm25 | kept.8 | 2 -->0.67<!-- /results -->

It needs only the standard library of Python 3.8 or later.
"""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results/quality.json"
MARKED = re.compile(r"(<!-- results: (.+?) -->)(.*?)(<!-- /results -->)", re.DOTALL)
DEFAULT = "peak/ranked+coverage"
METHODS = (DEFAULT, "mean/self", "maxsim", "cosine", "bm25")
SELECTION_SETS = ("nq20", "xquad", "hotpot", "wiki2", "musique", "wice")
COMPRESSION_SETS = SELECTION_SETS[:5]
ATTRIBUTION_SETS = ("quotesum", "verigran")
# What would make the file large: single rows, and the bins of diagrams.
ROWS = ("rows", "spans", "bins")


class ResultsError(Exception):
    """An error that names the page and what is wrong with it."""


def main(arguments):
    try:
        if arguments[:1] == ["gather"] and arguments[1:]:
            gather([Path(argument) for argument in arguments[1:]])
            fill(writes=True)
        elif arguments in (["fill"], ["check"]):
            fill(writes=arguments == ["fill"])
        else:
            sys.exit(__doc__)
    except ResultsError as error:
        sys.exit("error: {}".format(error))


def gather(files):
    """Writes the results of these files, without their rows. Sets that no file has keep theirs."""
    known = json.loads(RESULTS.read_text())["sets"] if RESULTS.exists() else {}
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    about = {"command": "thresher-lab --json FILE eval SET.jsonl", "commit": commit.stdout.decode().strip(), "date": str(datetime.date.today())}
    for file in files:
        report = json.loads(file.read_text())
        known[report["data"]] = {**about, **slim(report)}
    RESULTS.write_text(json.dumps({"sets": dict(sorted(known.items()))}, indent=1, sort_keys=True) + "\n")


def slim(value):
    if isinstance(value, dict):
        # "rows" of a report is a number, that of a judgement a list.
        return {key: slim(part) for key, part in value.items() if not (key in ROWS and isinstance(part, list))}
    return round(value, 6) if isinstance(value, float) else [slim(part) for part in value] if isinstance(value, list) else value


def fill(writes):
    try:
        sets = json.loads(RESULTS.read_text())["sets"]
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError("docs/results/quality.json: {}".format(error))
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before = page.read_text()

        def filled(found):
            begin, wanted, _, end = found.groups()
            try:
                return begin + text_of(sets, wanted) + end
            except (KeyError, TypeError, ValueError) as wrong:
                raise ResultsError("{}: {!r} cannot be filled from docs/results/quality.json: {!r}".format(page.relative_to(ROOT), wanted, wrong))

        after = MARKED.sub(filled, before)
        if after != before:
            stale.append(str(page.relative_to(ROOT)))
            if writes:
                page.write_text(after)
    if stale and not writes:
        raise ResultsError("figures differ from docs/results/quality.json: {}; run scripts/results.py fill".format(", ".join(stale)))


def text_of(sets, wanted):
    if wanted in TABLES:
        return "\n" + TABLES[wanted](sets) + "\n"
    place, _, interval = wanted.partition(" | interval")
    name, method, measure, digits = place.split(" | ")
    return figure(sets[name], method, measure, int(digits), bool(wanted.endswith("interval")))


def figure(report, method, measure, digits=3, interval=False):
    """A measure of a method, or of the report itself if the method is "-"."""
    # Attribution names the codec of the blocks as well.
    methods = {name.replace(" over int8", ""): found for name, found in report["methods"].items()}
    of_method = report if method == "-" else methods[method]
    path = measure.split(".")
    text = "{:.{}f}".format(at(of_method, path), digits)
    if interval:
        # The intervals of a nested measure are in the object around it.
        first = path[0] if method == "-" and isinstance(of_method[path[0]], dict) else None
        low, high = at(of_method[first]["ci95"], path[1:]) if first else at(of_method["ci95"], path)
        text += " [{:.{d}f}, {:.{d}f}]".format(low, high, d=digits)
    return text


def at(value, path):
    for key in path:
        value = value[key]
    return value


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| {} |".format(" | ".join(line)) for line in lines)


def name_of(method):
    return "**{}**".format(method) if method == DEFAULT else method


def selection(sets):
    def cell(method, name):
        return "{} / {}".format(figure(sets[name], method, "recall_at_gold"), figure(sets[name], method, "mrr"))

    head = ["method", *("{} ({})".format(name, sets[name]["rows"]) for name in SELECTION_SETS)]
    rows = [[name_of(method), *(cell(method, name) for name in SELECTION_SETS)] for method in METHODS]
    intervals = [[measure, *(interval(sets[name], key) for name in SELECTION_SETS)] for measure, key in (("R@gold", "recall_at_gold"), ("MRR", "mrr"))]
    return table(head, rows) + "\n\n95 % intervals of the default:\n\n" + table(["measure", *SELECTION_SETS], intervals)


def compression(sets):
    def cell(method, name):
        return " / ".join(figure(sets[name], method, "kept.{}".format(ratio)) for ratio in (4, 8, 16))

    rows = [[name_of(method), *(cell(method, name) for name in COMPRESSION_SETS)] for method in METHODS]
    rows.append(["interval of the default at 8×", *(interval(sets[name], "kept.8") for name in COMPRESSION_SETS)])
    return table(["method", *COMPRESSION_SETS], rows)


def interval(report, measure):
    return figure(report, DEFAULT, measure, interval=True).partition(" ")[2]


def attribution(sets):
    methods = ["attribution", *METHODS, "common run"]
    rows = [[name_of(method).replace("attribution", "**attribution**"), *(figure(sets[name], method, "accuracy", interval=True) for name in ATTRIBUTION_SETS)] for method in methods]
    return table(["method", *("{} ({} rows)".format(name, sets[name]["rows"]) for name in ATTRIBUTION_SETS)], rows)


def budgets(sets):
    def kept(ratio):
        return [figure(sets[name], DEFAULT, "kept.{}".format(ratio)) for name in COMPRESSION_SETS]

    rows = [["`ratio` {}".format(1 / ratio), *kept(ratio)] for ratio in (4, 8, 16)]
    rows.append(["`auto`", *(figure(sets[name], "-", "auto.kept") for name in COMPRESSION_SETS)])
    rows.append(["tokens kept by `auto`", *(figure(sets[name], "-", "auto.tokens_share") for name in COMPRESSION_SETS)])
    return table(["budget", *COMPRESSION_SETS], rows)


def auto(sets):
    measures = ("auto.tokens_share", "auto.kept", "auto.gold_share")
    rows = [[name, *(figure(sets[name], "-", measure, interval=True) for measure in measures)] for name in COMPRESSION_SETS]
    return table(["set", "share of tokens kept", "share of answers kept", "share of needed chunks of which something is kept"], rows)


def support(sets):
    kinds = ("number", "name", "negation", "elsewhere")
    measures = ["support.auroc", *("support.by_kind.{}".format(kind) for kind in kinds)]
    rows = [[name, *(figure(sets[name], "-", measure, interval=True) for measure in measures)] for name in ATTRIBUTION_SETS]
    return table(["set", "all", *kinds], rows)


TABLES = {"selection": selection, "compression": compression, "attribution": attribution, "auto": auto, "budgets": budgets, "support": support}

if __name__ == "__main__":
    main(sys.argv[1:])
