"""What a compressed result of a tool still says: pieces that are needed, places that mislead, and a table of both."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any

# A mark says that something is missing at its place: Thresher's `[… 14 lines]`, `[…]`, `[...]`, and what other programs write.
MARK = re.compile(r"…|\[\.\.\.|\.\.\.\]|<<ccr:|<ccr|\[\d[\d,]* [^\]]*(?:omitted|more|removed|compressed|lines|items)|\b(?:omitted|truncated|compressed)\b", re.IGNORECASE)
BEGIN, END = "<begin>", "<end>"


def plain(text: str) -> str:
    """The text with each run of white space as one blank."""
    return " ".join(text.split())


# Kinds whose texts programs write anew in another form: JSON as a table, a table as CSV, lines of `grep` below the name of their file.
RECORDS = ("JSON", "tables", "CSV")
NUMBERED = re.compile(r"\d+:")


def atoms(text: str) -> list[str]:
    """Names and values of a record."""
    return [atom for atom in (atom.strip(":") for atom in re.findall(r"[^\s\"'{}\[\],;|│\\()]+", text.replace('":', '" '))) if atom]


def ungrouped(text: str) -> str:
    """Numbered lines with the name of the file that stands above them."""
    name, found = "", []
    for line in text.splitlines():
        if NUMBERED.match(line):
            found.append(f"{name}:{line}")
        else:
            name = line.strip().rstrip(":")
    return "\n".join(found)


def has(text: str, piece: str, kind: str) -> bool:
    """Whether the text has the piece. A record may have another form: of JSON, all names and values of the piece are in the text; of a table, in
    one line."""
    if plain(piece) in plain(text) or plain(piece) in plain(ungrouped(text)):
        return True
    if kind not in RECORDS:
        return False
    places = [text] if kind == "JSON" else text.replace("\\n", "\n").splitlines()
    return any(all(atom in place for atom in atoms(piece)) for place in places)


@dataclasses.dataclass
class Fault:
    """A place of a sent text that misleads its reader."""

    sort: str  # "gap", "cut", "indent" or "rewritten"
    place: str


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def is_only_mark(line: str) -> bool:
    return bool(re.fullmatch(r"\s*(?:\[[^\]{}]{1,150}\]|<<[^>]*>>|…)\s*", line)) and bool(MARK.search(line))


def is_mark(line: str, known: set[str]) -> bool:
    return line not in known and bool(MARK.search(line))


def lacks(part: str, sent: str) -> bool:
    """Whether a part of a line says something that was not sent. A program may send the file name of `grep` once, above its lines."""
    return plain(part).strip(" .,:;-") not in sent


def faults_of_lines(before: str, after: str) -> list[Fault]:
    """Lines that became neighbours without a mark between them, lines that lost a part without a mark, and lines whose indentation changed."""
    old, new = lines(before), lines(after)
    bare_old, bare_new = [line.strip() for line in old], [line.strip() for line in new]
    known, raw = set(bare_old), set(old)
    if bare_old == bare_new:
        return [Fault("indent", b) for a, b in zip(old, new, strict=True) if a != b]
    position: dict[int, int] = {}
    for block in difflib.SequenceMatcher(None, bare_old, bare_new, autojunk=False).get_matching_blocks():
        for at in range(block.size):
            position[block.b + at] = block.a + at
    neighbours = set(zip([BEGIN, *bare_old], [*bare_old, END], strict=True))
    sent = plain(after)
    found = []
    # A mark within a line, or a line of its own, explains the gap before and after it.
    previous, previous_at, marked = BEGIN, -1, False
    for at, line in enumerate([*bare_new, END]):
        if line is not END and is_mark(line, known):
            marked = True
            continue
        if line is not END and line not in known:
            # A part of a line, or no line of the original at all.
            whole = next((whole for whole in bare_old if line in whole), None)
            if whole is None:
                found.append(Fault("rewritten", line[:110]))
            else:
                head, _, tail = whole.partition(line)
                followed = at + 1 < len(bare_new) and is_mark(bare_new[at + 1], known)
                if lacks(head, sent) and not marked or lacks(tail, sent) and not followed:
                    found.append(Fault("cut", line[:110]))
            previous, previous_at, marked = "", -2, False
            continue
        old_at = len(old) if line is END else position.get(at, -3)
        follows = (previous, line) in neighbours or (previous_at >= -1 and old_at == previous_at + 1) or previous == ""
        if not follows and not marked:
            found.append(Fault("gap", f"{previous[:80]}  >>  {line[:80]}"))
        if line is not END and new[at] not in raw:
            found.append(Fault("indent", new[at][:110]))
        previous, previous_at, marked = line, old_at, False
    return found


@dataclasses.dataclass
class Row:
    """One result of a tool, before and after."""

    id: str
    kind: str
    before: str
    after: str
    tokens: int
    sent: int
    needs: int
    lost: list[str]
    misleading: list[str]
    outcome: str  # "unchanged", "encoded" (every byte can be read from it, or from the earlier result that it names), "shortened" or "emptied"


def judge(result: dict[str, Any], id: str, sent: str, expanded: str, count: dict[str, int]) -> Row:
    """Judges what was sent of a result by what can be read from it: `expanded` is the text that an encoding or a reference stands for, or `sent` itself."""
    before, kind, after = result["text"], result["kind"], expanded
    if after == before:
        outcome = "unchanged" if sent == before else "encoded"
    else:
        outcome = "emptied" if all(is_only_mark(line) for line in lines(after)) else "shortened"
    misleading = [f"together: {first}  WITHOUT  {second}" for first, second in result["together"] if has(after, first, kind) and not has(after, second, kind)]
    # Lines that were written anew are no gaps, and JSON that was written anew is judged by its needed pieces only.
    if outcome == "shortened" and kind != "JSON":
        misleading += [f"{fault.sort}: {fault.place}" for fault in faults_of_lines(before, after) if fault.sort != "rewritten"]
    lost = [need for need in result["needs"] if not has(after, need, kind)]
    return Row(id, kind, before, sent, count[before], count[sent], len(result["needs"]), lost, misleading, outcome)


SORTS = {
    "together": "pieces without what corrects them",
    "gap": "gaps without a mark",
    "cut": "lines that lost a part without a mark",
    "indent": "lines with another indentation",
}
COLUMNS = ("kind of result", "n", "tokens", "sent", "saved", "unchanged", "encoded", "shortened", "emptied", "needed kept", "lost", "misleading")


def table(rows: list[Row]) -> str:
    groups = {kind: [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}
    printed: list[tuple[str, ...]] = [COLUMNS]
    for kind, group in [*groups.items(), ("all", rows)]:
        tokens, sent = sum(row.tokens for row in group), sum(row.sent for row in group)
        needs, lost = sum(row.needs for row in group), sum(len(row.lost) for row in group)
        outcomes = [sum(row.outcome == outcome for row in group) for outcome in ("unchanged", "encoded", "shortened", "emptied")]
        cells = [len(group), tokens, sent, f"{100 * (1 - sent / tokens):.1f} %", *outcomes, f"{needs - lost}/{needs}", f"{100 * lost / needs:.1f} %", sum(len(row.misleading) for row in group)]
        printed.append((kind, *(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)))
    widths = [max(len(row[at]) for row in printed) for at in range(len(COLUMNS))]
    out = ["  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in printed]
    out.insert(1, "-" * len(out[0]))
    out.insert(len(out) - 1, "-" * len(out[0]))
    sorts = [place.partition(":")[0] for row in rows for place in row.misleading]
    out.append("misleading places: " + (", ".join(f"{sorts.count(sort)} {SORTS[sort]}" for sort in SORTS if sort in sorts) or "none"))
    return "\n".join(out)
