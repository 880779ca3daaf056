"""What the frameworks' own retrievers find in these tests, and who counts as right."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

from thresher_client.types import TokenBudget

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
# Room for that sentence and for nothing else.
BUDGET: TokenBudget = {"tokens": 14}
ABSENT = ("Trains leave", "324 metres")
WORDS = 64


def embed(text: str) -> list[float]:
    """Words hashed into a vector: the same everywhere, and near where words are shared."""
    vector = [0.0] * WORDS
    for word in re.findall(r"\w+", text.lower()):
        vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % WORDS] += 1.0
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


def is_cut_from(about: dict[str, Any], text: str, source: str) -> bool:
    """Whether the spans, in code points of the original, are what the text is made of."""
    pieces = [source[span["start"] : span["end"]] for span in about["spans"]]
    at = 0
    for piece in pieces:
        at = text.index(piece, at) + len(piece)
    # Between pieces stands nothing but white space.
    return bool(pieces) and len("".join(text.split())) == len("".join("".join(pieces).split()))
