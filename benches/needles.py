"""Writes questions about one sentence (the needle) that is hidden in long text, for `thresher-lab kv`.

    python3 benches/needles.py --tokens 2000 --count 8 > needles.jsonl

The text is that of docs/*.md of this repository, paragraph by paragraph. Each line has the chunks, the question, its answer, and as
`kind` the place of the needle. `--count` questions are written for each place: near the beginning, at a quarter, the middle, three
quarters, and near the end. Equal arguments give equal lines as long as docs/*.md stay the same.
"""

import argparse
import json
import random
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPTHS = {"depth 5 %": 0.05, "depth 25 %": 0.25, "depth 50 %": 0.5, "depth 75 %": 0.75, "depth 95 %": 0.95}
PLACES = ["Arvika", "Bergen", "Cordoba", "Dunedin", "Esbjerg", "Fukuoka", "Galway", "Hobart", "Izmir", "Jaipur", "Kaunas", "Lugano"]
# A token of SmolLM2 has about this many characters of these documents.
CHARACTERS_PER_TOKEN = 4.2


def paragraphs():
    """The paragraphs of prose: no code, tables, lists and headings."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            paragraph = " ".join(paragraph.split())
            if len(paragraph) > 200 and paragraph[0].isalpha():
                yield paragraph


def haystack(rng, characters):
    """Random paragraphs with that many characters together."""
    chunks, pool = [], list(paragraphs())
    rng.shuffle(pool)
    for paragraph in pool:
        if characters <= 0:
            return chunks
        chunks.append(paragraph)
        characters -= len(paragraph)
    raise SystemExit("the documents are shorter than --tokens; name a smaller number")


def row(kind, depth, tokens, rng):
    place, code = rng.choice(PLACES), str(rng.randrange(10_000, 100_000))
    chunks = haystack(rng, tokens * CHARACTERS_PER_TOKEN)
    needle = f"The access code of the observatory in {place} is {code}."
    at = round(depth * len(chunks))
    chunks.insert(at, needle)
    return {
        "query": f"What is the access code of the observatory in {place}?",
        "chunks": [{"id": str(i), "text": text} for i, text in enumerate(chunks)],
        "gold": [at],
        "answers": [code],
        "kind": kind,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="about how many tokens the chunks of a question have (default: 2000)")
    parser.add_argument("--count", type=int, default=8, help="the number of questions for each place of the needle (default: 8)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    for _ in range(arguments.count):
        for kind, depth in DEPTHS.items():
            print(json.dumps(row(kind, depth, arguments.tokens, rng)))


if __name__ == "__main__":
    main()
