"""The documents that the frameworks' retrievers find in these tests, the question, and the expected sentence."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

from thresher_client.types import Budget

QUESTION = "Who discovered penicillin, and when?"
TEXTS = [
    "Penicillium is a genus of moulds. Some of them ripen cheese.",
    "The hospital at Paddington is an old one — it has a tower 😀. Alexander Fleming discovered penicillin in 1928, in London. "
    "Trains leave from there to Bristol, and a canal runs behind it. The summer was cool, and many people went to the sea.",
    "The tower is 324 metres high. It was finished in 1889.",
    "Bread is baked from flour, water and salt, and is best on its first day. Butter goes well with it.",
]
SENTENCE = "Alexander Fleming discovered penicillin in 1928, in London."
FLEMING = 1
# Large enough for that sentence and for nothing else.
BUDGET: Budget = {"tokens": 14}
# A text about something else, which no context needs.
ABSENT = ("324 metres",)
WORDS = 64


def embed(text: str) -> list[float]:
    """Embeds a text by hashing its words: deterministic, and texts with common words are similar."""
    vector = [0.0] * WORDS
    for word in re.findall(r"\w+", text.lower()):
        vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % WORDS] += 1.0
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


def is_cut_from(metadata: dict[str, Any], text: str, source: str) -> bool:
    """Whether `text` consists of the spans of `source` in `metadata`, in code points, with marks between them."""
    pieces = [source[span["start"] : span["end"]] for span in metadata["spans"]]
    at, between = 0, []
    for piece in pieces:
        start = text.index(piece, at)
        between.append(text[at:start].strip())
        at = start + len(piece)
    # Between the pieces, a mark stands.
    return bool(pieces) and between == ["", *["…"] * (len(pieces) - 1)] and not text[at:].strip()
