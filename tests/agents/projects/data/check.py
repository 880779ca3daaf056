"""Summarises sales.csv as JSON. Fails on a row that it cannot read if --strict is given.

usage: check.py FILE [--strict]
"""

import collections
import csv
import json
import statistics
import sys


def number(text, column, line, strict):
    try:
        return float(text)
    except ValueError as error:
        if strict:
            raise ValueError(f"line {line}: column {column!r} is not a number: {text!r}") from error
        return None


def main():
    strict = "--strict" in sys.argv
    columns = collections.defaultdict(list)
    with open(sys.argv[1]) as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            for name, text in row.items():
                columns[name].append(number(text, name, line, strict) if name in ("count", "net") else text)
    report = {}
    for name, values in columns.items():
        known = [value for value in values if value not in (None, "")]
        one = {"rows": len(values), "missing": len(values) - len(known), "distinct": len(set(known))}
        if name in ("count", "net"):
            one |= {"min": min(known), "max": max(known), "mean": round(statistics.mean(known), 3), "median": statistics.median(known)}
        elif one["distinct"] < 20:
            one["values"] = dict(collections.Counter(known).most_common())
        else:
            one |= {"first": known[0], "last": known[-1]}
        report[name] = one
    print(json.dumps(report, indent=2))


main()
