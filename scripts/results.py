#!/usr/bin/env python3
"""Fills or checks the marked figures of the documentation from docs/results, so that each has one source.

    results.py gather FILE.json...    write docs/results/quality.json from what `thresher-lab --json FILE eval` has written, then fill
    results.py fill                   write the figures into the pages
    results.py check                  fail if a page has another figure than the results

A page marks its figures with comments, which readers do not see. A table that is filled, from quality.json or peers.json:

    <!-- results: compression -->
    ...
    <!-- /results -->

A figure with its number of digits, without and with the 95 % interval (SET | METHOD | MEASURE | DIGITS, and "interval"):

    <!-- results: hotpot | bm25 | kept.8 | 2 -->0.67<!-- /results -->

Figures of a text file are only checked: each number, rounded to as many digits as the page has, must be in the file. With "results-rows", the
numbers of a table's row, without its first cell, must be in one line of the file:

    <!-- results-file: gpu-h200-2026-11-27.txt -->
    ...
    <!-- /results-file -->

It needs only the standard library of Python 3.8 or later.
"""

import datetime
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results/quality.json"
PLOT = ROOT / "docs/images/kept-over-tokens.svg"
MARKED = re.compile(r"(<!-- results: (.+?) -->)(.*?)(<!-- /results -->)", re.DOTALL)
CHECKED = re.compile(r"<!-- results-(file|rows): (\S+) -->(.*?)<!-- /results-\1 -->", re.DOTALL)
# A number that is not part of a word or of a version.
NUMBER = re.compile(r"(?<![\w.])([-+]?\d+(?:,\d{3})*(?:\.(\d+))?)(?!\w|\.\d)( million)?")
DEFAULT = "peak/ranked+coverage"
METHODS = (DEFAULT, "mean/self", "maxsim", "cosine", "bm25")
SELECTION_SETS = ("nq20", "xquad", "hotpot", "wiki2", "musique", "wice")
COMPRESSION_SETS = SELECTION_SETS[:5]
ATTRIBUTION_SETS = ("quotesum", "verigran")
# The methods of benches/peers.py that the comparison lists, as it calls them.
PEERS = {
    "Thresher 1/4": "Thresher 1/4",
    "Thresher auto": "Thresher without a budget",
    "Thresher chunks": "Thresher, complete chunks",
    "BM25 sentences": "BM25, sentences",
    "BM25 chunks": "BM25, complete chunks",
    "cosine chunks": "cosine (MiniLM), complete chunks",
    "Headroom TextCrusher": "Headroom 0.42, TextCrusher",
    "LLMLingua, SmolLM2": "LLMLingua with SmolLM2-135M",
    "LongLLMLingua, SmolLM2": "LongLLMLingua with SmolLM2-135M",
}
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
    stale, wrong = [], []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name, before = page.relative_to(ROOT), page.read_text()

        def filled(found):
            begin, wanted, _, end = found.groups()
            try:
                return begin + text_of(wanted) + end
            except (KeyError, TypeError, ValueError) as error:
                raise ResultsError("{}: {!r} cannot be filled from docs/results: {!r}".format(name, wanted, error))

        after = MARKED.sub(filled, before)
        if after != before:
            stale.append(str(name))
            if writes:
                page.write_text(after)
        wrong += [found for block in CHECKED.finditer(after) for found in unsourced(name, after, block)]
        if after.count("<!-- results") != len(MARKED.findall(after)) + len(CHECKED.findall(after)):
            wrong.append("{}: a mark of results is not closed".format(name))
    if not PLOT.exists() or PLOT.read_text() != plot(sets_of("quality.json")):
        stale.append(str(PLOT.relative_to(ROOT)))
        if writes:
            PLOT.write_text(plot(sets_of("quality.json")))
    if stale and not writes:
        wrong.insert(0, "figures differ from docs/results: {}; run scripts/results.py fill".format(", ".join(stale)))
    if wrong:
        raise ResultsError("\n  ".join(wrong))


def unsourced(page, text, block):
    """Yields the numbers of a checked block that its file does not have."""
    how, file, body = block.groups()
    try:
        known = [[value for _, value, _ in numbers(line)] for line in (ROOT / "docs/results" / file).read_text().splitlines()]
    except OSError as error:
        raise ResultsError("{}: docs/results/{}: {}".format(page, file, error.strerror))
    everywhere = sum(known, [])
    first = text.count("\n", 0, block.start(3)) + 1
    for place, line in enumerate(body.split("\n"), first):
        if how == "rows":
            wanted = list(numbers("|".join(line.split("|")[2:]))) if line.startswith("|") else []
            if wanted and not any(all(is_near(number, values) for number in wanted) for values in known):
                yield "{}:{}: no line of docs/results/{} has {}".format(page, place, file, ", ".join(written for written, _, _ in wanted))
        else:
            for number in numbers(line):
                if not is_near(number, everywhere):
                    yield "{}:{}: {} is not in docs/results/{}".format(page, place, number[0], file)


def numbers(text):
    """Yields each number as it is written, its value, and how far the value that it was rounded from may be away."""
    for written, decimals, million in NUMBER.findall(text):
        unit = 1e6 if million else 1
        yield written + million, float(written.replace(",", "")) * unit, 0.5 * unit / 10 ** len(decimals)


def is_near(number, values):
    _, wanted, tolerance = number
    return any(abs(value - wanted) <= tolerance * 1.000001 for value in values)


@functools.lru_cache()
def sets_of(file):
    try:
        return json.loads((ROOT / "docs/results" / file).read_text())["sets"]
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError("docs/results/{}: {}".format(file, error))


def text_of(wanted):
    if wanted == "peers":
        return "\n" + peers(sets_of("peers.json")["all sets"]) + "\n"
    sets = sets_of("quality.json")
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
    rows.append(["none", *(figure(sets[name], "-", "auto.kept") for name in COMPRESSION_SETS)])
    rows.append(["tokens kept without a budget", *(figure(sets[name], "-", "auto.tokens_share") for name in COMPRESSION_SETS)])
    return table(["budget", *COMPRESSION_SETS], rows)


def plot(sets):
    """Draws the answers that are kept over the tokens that are kept: a line through three ratios for each set, and a dot for no budget."""
    left, top, width, height, share_max, kept_min = 56, 16, 560, 300, 0.5, 0.2
    colours = ("#4477aa", "#228833", "#aa3377", "#cc6633", "#666666")

    def place(share, kept):
        return "{:.1f},{:.1f}".format(left + width * share / share_max, top + height * (1 - kept) / (1 - kept_min))

    def text(share, kept, words, dx=0, dy=4, anchor="start", colour="#444"):
        x, y = place(share, kept).split(",")
        return '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>'.format(float(x) + dx, float(y) + dy, anchor, colour, words)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 370" font-family="sans-serif" font-size="13">',
           "<title>Answers that are kept, over the tokens that are kept</title>", '<rect width="760" height="370" fill="#fff"/>']
    for kept in (0.2, 0.4, 0.6, 0.8, 1.0):
        out.append('<polyline points="{} {}" stroke="#ddd" fill="none"/>'.format(place(0, kept), place(share_max, kept)))
        out.append(text(0, kept, "{:.0%}".format(kept), dx=-8, anchor="end"))
    out += [text(share, kept_min, "{:.0%}".format(share), dy=20, anchor="middle") for share in (0, 0.1, 0.2, 0.3, 0.4, 0.5)]
    out.append(text(share_max / 2, kept_min, "tokens kept (answers kept on the left axis)", dy=40, anchor="middle"))
    for at_set, (name, colour) in enumerate(zip(COMPRESSION_SETS, colours)):
        of_ratio, default = sets[name]["methods"][DEFAULT]["kept"], sets[name]["auto"]
        line = " ".join(place(1 / ratio, of_ratio[str(ratio)]) for ratio in (16, 8, 4))
        out.append('<polyline points="{}" stroke="{}" stroke-width="2" fill="none"/>'.format(line, colour))
        x, y = place(default["tokens_share"], default["kept"]).split(",")
        out.append('<circle cx="{}" cy="{}" r="5" fill="{}"/>'.format(x, y, colour))
        out.append(text(share_max, 0.95 - 0.1 * at_set, name, dx=16, colour=colour))
    out.append(text(share_max, 0.95 - 0.1 * len(COMPRESSION_SETS), "line: ratios", dx=16))
    out.append(text(share_max, 0.95 - 0.1 * (len(COMPRESSION_SETS) + 0.7), "dot: no budget", dx=16))
    return "\n".join([*out, "</svg>"]) + "\n"


def auto(sets):
    measures = ("auto.tokens_share", "auto.kept", "auto.gold_share")
    rows = [[name, *(figure(sets[name], "-", measure, interval=True) for measure in measures)] for name in COMPRESSION_SETS]
    return table(["set", "share of tokens kept", "share of answers kept", "share of needed chunks of which something is kept"], rows)


def support(sets):
    kinds = ("number", "name", "negation", "elsewhere")
    measures = ["support.auroc", *("support.by_kind.{}".format(kind) for kind in kinds)]
    rows = [[name, *(figure(sets[name], "-", measure, interval=True) for measure in measures)] for name in ATTRIBUTION_SETS]
    return table(["set", "all", *kinds], rows)


def peers(methods):
    def less(name):
        return "" if name == "Thresher 1/4" else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*methods[name]["thresher_minus_this"])

    rows = [
        [shown, str(methods[name]["rows"]), "{:.3f}".format(methods[name]["kept"]), "{:.3f}".format(methods[name]["tokens"]), less(name)]
        for name, shown in PEERS.items()
    ]
    return table(["method", "rows", "kept", "tokens", "Thresher 1/4 minus this"], rows)


TABLES = {"selection": selection, "compression": compression, "attribution": attribution, "auto": auto, "budgets": budgets, "support": support}

if __name__ == "__main__":
    main(sys.argv[1:])
