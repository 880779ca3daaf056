"""What a compressed result of a tool still says: pieces that are needed, places that mislead, and a table of both."""

from __future__ import annotations

import dataclasses
import difflib
import re

# A mark says that something is missing at its place: Thresher's `[… 14 lines]`, `[…]`, `[...]`, and what other programs write.
MARK = re.compile(r"…|\[\.\.\.|\.\.\.\]|<<ccr:|<ccr|\[\d[\d,]* [^\]]*(?:omitted|more|removed|compressed|lines|items)|\b(?:omitted|truncated|compressed)\b", re.IGNORECASE)
# An entry that folds repeated lines, such as "[3 lines like this]".
BEGIN, END = "<begin>", "<end>"


def plain(text: str) -> str:
    """The text with each run of white space as one blank."""
    return " ".join(text.split())


def atoms(text: str) -> list[str]:
    return re.findall(r"[^\s\"'{}\[\],;|\\()]+", text.replace('":', '" '))


def has(text: str, piece: str, is_json: bool) -> bool:
    """Whether the text has the piece. Programs write JSON anew in other forms: there, the names and values of the piece must be in the text."""
    if plain(piece) in plain(text):
        return True
    return is_json and all(atom.rstrip(":") in text for atom in atoms(piece))


@dataclasses.dataclass
class Fault:
    """A place of a sent text that misleads its reader."""

    sort: str  # "together", "gap", "cut", "indent", "rewritten"
    place: str


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def is_mark(line: str, known: set[str]) -> bool:
    return line not in known and bool(MARK.search(line))


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
    found = []
    # A mark within a line, or a line of its own, explains the gap before and after it.
    previous, previous_at, marked = BEGIN, -1, False
    for at, line in enumerate([*bare_new, END]):
        if line is not END and is_mark(line, known):
            marked = True
            continue
        if line is not END and line not in known:
            # The beginning or the end of a sentence's line was left out, or the line is no line of the original.
            part = next((whole for whole in bare_old if line in whole), None)
            found.append(Fault("cut", f"{line[:110]}") if part else Fault("rewritten", line[:110]))
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


def count_as_faults(faults: list[Fault], is_json: bool) -> list[Fault]:
    """Lines that were written anew are no gaps. JSON that was written anew is judged by its needed pieces only."""
    return [] if is_json else [fault for fault in faults if fault.sort != "rewritten"]


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
    outcome: str  # "unchanged", "shortened" or "emptied"


def judge(result: dict[str, object], id: str, after: str, count: dict[str, int]) -> Row:
    before = str(result["text"])
    is_json = before.lstrip()[:1] in ("{", "[") and result["kind"] == "JSON"
    needs, together = [str(need) for need in result["needs"]], result["together"]  # type: ignore[attr-defined]
    left = plain(re.sub(r"\[…[^\]]*\]|\[\.\.\.\]|…", "", after))
    outcome = "unchanged" if after == before else "shortened" if left else "emptied"
    misleading = [
        f"together: {first}  WITHOUT  {second}" for first, second in together if has(after, first, is_json) and not has(after, second, is_json)  # type: ignore[attr-defined]
    ]
    if outcome == "shortened":
        misleading += [f"{fault.sort}: {fault.place}" for fault in count_as_faults(faults_of_lines(before, after), is_json)]
    lost = [need for need in needs if not has(after, need, is_json)]
    return Row(id, str(result["kind"]), before, after, count[before], count[after], len(needs), lost, misleading, outcome)


COLUMNS = ("kind of result", "n", "tokens", "sent", "saved", "unchanged", "shortened", "emptied", "needed kept", "lost", "misleading")


def table(rows: list[Row]) -> str:
    groups = {kind: [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}
    printed = [COLUMNS]
    for kind, group in [*groups.items(), ("all", rows)]:
        tokens, sent = sum(row.tokens for row in group), sum(row.sent for row in group)
        needs, lost = sum(row.needs for row in group), sum(len(row.lost) for row in group)
        outcomes = [sum(row.outcome == outcome for row in group) for outcome in ("unchanged", "shortened", "emptied")]
        cells = [len(group), tokens, sent, f"{100 * (1 - sent / tokens):.1f} %", *outcomes, f"{needs - lost}/{needs}", f"{100 * lost / needs:.1f} %", sum(len(row.misleading) for row in group)]
        printed.append((kind, *(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)))
    widths = [max(len(row[at]) for row in printed) for at in range(len(COLUMNS))]
    out = ["  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in printed]
    out.insert(1, "-" * len(out[0]))
    out.insert(len(out) - 1, "-" * len(out[0]))
    return "\n".join(out)
