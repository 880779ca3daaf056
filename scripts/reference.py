#!/usr/bin/env python3
"""Keeps reference tables of the documentation equal to the code: error codes, fields, headers and commands.

    reference.py fill     write the table of error codes into its page
    reference.py check    fail if that table or another marked table differs from the code, or if a page names an unknown header

Codes and fields come from docs/openapi.json, which a test of the daemon compares with the code; headers and commands also from src/. A page marks
tables with comments, which readers do not see. A table of this kind is written by "fill":

    <!-- errors -->
    ...
    <!-- /errors -->

A table that follows one of these marks is only checked. The code spans of its first column must be the names that the code has:

    <!-- listed: CompressBody -->                      the fields or the values of a schema
    <!-- listed: Source, except chunk, index -->       all but these
    <!-- listed: headers -->                           all headers whose names begin with x-thresher
    <!-- listed: headers of /v1/messages -->           those of its responses
    <!-- listed: commands -->                          the commands of the command line

It needs only the standard library of Python 3.8 or later.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ERRORS = re.compile(r"(<!-- errors -->\n)(.*?)(<!-- /errors -->)", re.DOTALL)
LISTED = re.compile(r"^<!-- listed: (.+?)(?:, except (.+?))? -->\n\n?((?:\|.*\n)+)", re.MULTILINE)
HEADER = re.compile(r"x-thresher(?:-[a-z]+)*")


def main(arguments):
    if arguments not in (["fill"], ["check"]):
        sys.exit(__doc__)
    document = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
    headers = headers_of(document)
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name, text = page.relative_to(ROOT), page.read_text(encoding="utf-8")
        filled = ERRORS.sub(lambda found: found[1] + errors(document) + found[3], text)
        if filled != text and arguments == ["fill"]:
            page.write_text(filled, encoding="utf-8")
        elif filled != text:
            wrong.append("{}: the table of error codes differs from docs/openapi.json; run scripts/reference.py fill".format(name))
        if text.count("<!-- listed: ") != len(LISTED.findall(text)):
            wrong.append("{}: a mark `listed` has no table below it".format(name))
        for found in LISTED.finditer(text):
            place = "{}:{}: the table of {}".format(name, text.count("\n", 0, found.start()) + 1, found[1])
            try:
                expect = names_of(found[1], document, headers) - set(filter(None, (found[2] or "").split(", ")))
            except KeyError as unknown:
                wrong.append("{}: there is no {}".format(place, unknown))
                continue
            wrong += differences(place, first_column(found[3]), expect)
        unknown = {span for span in HEADER.findall(text) if span not in headers}
        wrong += ["{}: the code knows no header {}".format(name, header) for header in sorted(unknown)]
    if wrong:
        sys.exit("error: pages differ from the code\n  " + "\n  ".join(wrong))


def errors(document):
    """Returns the table of error codes, by status."""
    schema = document["components"]["schemas"]["ErrorCode"]
    rows = sorted((schema["x-http-statuses"][code], code, meaning) for code, meaning in zip(schema["enum"], schema["x-enum-descriptions"]))
    lines = ["| status | code | meaning |", "|---|---|---|", *("| {} | `{}` | {} |".format(*row) for row in rows)]
    return "\n".join(lines) + "\n"


def names_of(what, document, headers):
    if what == "headers":
        return headers
    if what.startswith("headers of "):
        operations = document["paths"][what[len("headers of "):]].values()
        responses = [response for operation in operations for response in operation["responses"].values()]
        return {name for response in responses for name in response.get("headers", {}) if HEADER.fullmatch(name)}
    if what == "commands":
        return commands()
    schema = document["components"]["schemas"][what]
    return set(schema["enum"] if "enum" in schema else schema["properties"])


def headers_of(document):
    """Returns the names in the OpenAPI document and in string literals of the daemon."""
    sources = [json.dumps(document), *(file.read_text(encoding="utf-8") for file in sorted((ROOT / "src").rglob("*.rs")))]
    return {name for source in sources for name in re.findall(r'"({})"'.format(HEADER.pattern), source)}


def commands():
    body = re.search(r"^enum Command \{\n(.*?)^\}", (ROOT / "src/cli.rs").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
    shown = re.sub(r"#\[command\(hide = true\)\]\s+\w+", "", body)
    return {name.lower() for name in re.findall(r"^    ([A-Z]\w*)", shown, re.MULTILINE)}


def first_column(table):
    """Returns the code spans of the first column, of commands only the word after the program's name."""
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {re.sub(r"^thresher ", "", span).split(" ")[0] for cell in cells for span in re.findall(r"`([^`]+)`", cell)}


def differences(place, found, expect):
    for word, names in (("lacks", expect - found), ("has, unlike the code,", found - expect)):
        if names:
            yield "{} {} {}".format(place, word, ", ".join(sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1:])
