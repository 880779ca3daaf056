"""Generates text about invented things and questions about it, to train and measure the facts model.

    python models/train/world.py --count 200 --seed 7 > rows.jsonl       # each seed gives other rows

A row is a question, its chunks, which of them are needed, and the answer. Here are two chunks of a row (left), and its question
and answer (right):

    the owner of Kanir is Tobel . Dravun has mill as its home .      what is the colour of the owner of Kanir ?
    as for Tobel , its colour is amber . Tobel was seen at night .   the owner is Tobel , the colour is amber .

Needs only Python. Names have two syllables. Training, calibration and evaluation have no name in common.
"""

import argparse
import json
import random
import sys

# ---------------------------------------------------------------------------------------------------------------- words

FIRST = [c + v for c in "B Br D Dr F G Gr H K Kr L M N P R S T Tr V Z".split() for v in "aeiou"]
LAST = [c + v + "nrls"[(i * 5 + j) % 4] for i, c in enumerate("bdfgklmnprstvz") for j, v in enumerate("aeiou")] + \
       [c + v + "nrls"[(i * 5 + j + 2) % 4] for i, c in enumerate("bdgklm") for j, v in enumerate("aeiou")]
# Relations between two names (TIES), and properties of a name with their values (TRAITS).
TIES = "owner friend maker teacher rival".split()
TRAITS = {
    "colour": "red blue green yellow black white brown grey purple orange pink silver golden scarlet violet amber crimson ivory teal indigo",
    "home": "cave mill tower barn castle harbour island valley forest meadow village cottage lighthouse palace farm tent ship abbey inn quarry",
    "food": "bread soup cheese apples rice beans fish honey cake plums nuts porridge butter carrots pears stew figs eggs onions grapes",
    "song": "lullaby march ballad hymn waltz serenade anthem carol chant jig reel fugue sonata polka tango dirge aria madrigal minuet shanty",
    "tool": "hammer saw spade axe needle chisel plough ladder lathe anvil rake scythe file wrench drill trowel shears pliers bellows sickle",
    "shape": "square circle star cube cone spiral triangle oval ring cross crescent heart sphere pyramid diamond arch wedge cylinder disc prism",
    "smell": "smoke roses mint tar leather moss cinnamon vinegar lavender garlic pine ginger resin sage clover musk thyme camphor jasmine ash",
}
TRAITS = {trait: values.split() for trait, values in TRAITS.items()}
RELATIONS = TIES + list(TRAITS)

# {e} is a name, {r} a relation, {v} a value. In questions over two facts, {s} is the second relation and {u} the second value.
FACTS = ["the {r} of {e} is {v} .", "{e} has {v} as its {r} .", "{v} is the {r} of {e} .", "as for {e} , its {r} is {v} .",
         "as its {r} , {e} has {v} ."]
FILLERS = ["many people came to the market today .", "the weather was cold and the road was long .",
           "nobody knew what to say about it .", "it was late and they went on in silence .",
           "{e} was seen near the old bridge .", "people say that {e} came late .", "they asked about {e} at the market .",
           "the old people talk about the {r} of many things .", "they could not agree about the {r} of {e} ."]
QUESTIONS = ["what is the {r} of {e} ?", "which {r} does {e} have ?", "do they say what the {r} of {e} is ?"]
HOPS = ["what is the {s} of the {r} of {e} ?", "which {s} does the {r} of {e} have ?"]
ANSWER, HOP_ANSWER, NO_ANSWER = "{v} .", "the {r} is {v} , the {s} is {u} .", "nobody says ."

PUNCTUATION = [".", ",", "?"]
TEMPLATES = FACTS + FILLERS + QUESTIONS + HOPS + [ANSWER, HOP_ANSWER, NO_ANSWER]
WORDS = sorted({w for t in TEMPLATES for w in t.split() if w[0] != "{" and w not in PUNCTUATION} | set(RELATIONS)
               | {value for values in TRAITS.values() for value in values}) + PUNCTUATION

# A name belongs to the split that has the sum of its syllables' indices, modulo 7.
SPLITS = {"eval": [0], "calibrate": [1], "train": [2, 3, 4, 5, 6]}
CHUNK_TOKENS_MAX = 46


def tokens_of(words):
    """Returns the number of tokens of a list of words: two for a name, one for any other word."""
    return len(words) + sum(w[0].isupper() for w in words)


class Names:
    """Generates the names of one row, each at most once."""

    def __init__(self, rng, split):
        self.rng, self.residues, self.used = rng, SPLITS[split], set()

    def new(self, near=None):
        """Returns a new name, as indices of its two syllables. With `near`, it shares a syllable with that name."""
        while True:
            first, last = self.rng.randrange(len(FIRST)), self.rng.randrange(len(LAST))
            if near is not None:
                first, last = (near[0], last) if self.rng.random() < 0.5 else (first, near[1])
            if (first + last) % 7 in self.residues and (first, last) not in self.used:
                self.used.add((first, last))
                return first, last


def spell(name):
    return FIRST[name[0]] + LAST[name[1]]


# ----------------------------------------------------------------------------------------------------------------- rows


class World:
    """The chunks of one row and the facts in them.

    `chunks` is a list of chunks, each a list of sentences `(words, fact)`; `fact` is `(name, relation, value)`, or None for filler.
    `facts` maps `(name, relation)` to `(value, index of the chunk)`.
    """

    def __init__(self, rng, chunks, split, relations=None):
        self.rng, names = rng, Names(rng, split)
        known = []
        for _ in range(max(2, round(chunks * rng.uniform(0.6, 1.3)))):
            near = rng.choice(known) if known and rng.random() < 0.15 else None
            known.append(names.new(near))
        self.names = [spell(name) for name in known]
        self.relations = relations or rng.sample(RELATIONS, rng.randint(6, len(RELATIONS)))
        self.facts, self.chunks = {}, []
        for chunk in range(chunks):
            here = rng.sample(self.names, min(len(self.names), rng.randint(1, 3)))
            sentences, length = [], 0
            for _ in range(rng.randint(3, 5)):
                name, relation = rng.choice(here), rng.choice(self.relations)
                if (name, relation) in self.facts:
                    continue
                value = rng.choice(self.names if relation in TIES else TRAITS[relation])
                if value == name:
                    continue
                sentence = rng.choice(FACTS).format(e=name, r=relation, v=value).split()
                if length + tokens_of(sentence) > CHUNK_TOKENS_MAX:
                    break
                length += tokens_of(sentence)
                self.facts[name, relation] = (value, chunk)
                sentences.append((sentence, (name, relation, value)))
            for _ in range(rng.randint(0, 2) if sentences else 2):
                filler = rng.choice(FILLERS).format(e=rng.choice(here), r=rng.choice(self.relations)).split()
                if length + tokens_of(filler) <= CHUNK_TOKENS_MAX:
                    length += tokens_of(filler)
                    sentences.insert(rng.randint(0, len(sentences)), (filler, None))
            self.chunks.append(sentences)

    def texts(self):
        return [" ".join(word for words, _ in sentences for word in words) for sentences in self.chunks]

    def single(self):
        """Makes a question about one fact.

        Returns the question, the answer, the indices of the chunks that are needed, and the facts to look up, each
        `(name, relation, value)`.
        """
        (name, relation), (value, chunk) = self.rng.choice(list(self.facts.items()))
        return self.rng.choice(QUESTIONS).format(r=relation, e=name), ANSWER.format(v=value), [chunk], [(name, relation, value)]

    def hop(self):
        """Makes a question over two facts, where the value of the first is the name of the second. Returns None if there are none."""
        ends = {}
        for (name, relation), (value, chunk) in self.facts.items():
            ends.setdefault(name, []).append((relation, value, chunk))
        paths = [(name, relation, value, chunk, end) for (name, relation), (value, chunk) in self.facts.items()
                 for end in ends.get(value, ()) if end[1] != name]
        if not paths:
            return None
        name, relation, value, chunk, (second, end, last) = self.rng.choice(paths)
        question = self.rng.choice(HOPS).format(s=second, r=relation, e=name)
        return question, HOP_ANSWER.format(r=relation, v=value, s=second, u=end), sorted({chunk, last}), [(name, relation, value), (value, second, end)]

    def unanswered(self):
        """Makes a question about a name and a relation that both occur, but not together. Returns None if there is no such pair."""
        missing = [(n, r) for n in self.names for r in self.relations if (n, r) not in self.facts]
        missing = [(n, r) for n, r in missing if any(n == m for m, _ in self.facts) and any(r == q for _, q in self.facts)]
        if not missing:
            return None
        name, relation = self.rng.choice(missing)
        return self.rng.choice(QUESTIONS).format(r=relation, e=name), NO_ANSWER, [], [(name, relation, None)]


KINDS = {"single": 0.65, "hop": 0.2, "unanswered": 0.15}


def attribution_row(looked_up, world):
    """Returns a row with an answer in whole sentences, and for each sentence its range and the chunk that states it."""
    answer, spans = "", []
    for name, relation, value in looked_up:
        start = len(answer) + bool(answer)
        answer += " " * bool(answer) + f"the {relation} of {name} is {value} ."
        spans.append({"start": start, "end": len(answer), "chunk": world.facts[name, relation][1]})
    chunks = [{"id": f"c{i}", "title": "", "text": text} for i, text in enumerate(world.texts())]
    return {"answer": answer, "spans": spans, "chunks": chunks}


def rows(split, count, seed, chunks=20, kinds=KINDS, attribution=False):
    """Yields rows in the format of `thresher eval`. `gold` lists the needed chunks; it is empty if no chunk answers the question."""
    rng = random.Random(seed)
    for number in range(count):
        made = None
        while not made:
            world, kind = World(rng, chunks, split), rng.choices(list(kinds), list(kinds.values()))[0]
            made = world.facts and getattr(world, kind)()
        question, answer, gold, looked_up = made
        if attribution:
            yield attribution_row(looked_up, world)
            continue
        yield {"id": f"{split}-{seed}-{number:04}", "kind": kind, "query": question, "answers": [answer], "gold": gold,
               "chunks": [{"id": f"c{i}", "title": None, "text": text} for i, text in enumerate(world.texts())]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of rows (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=20, help="number of chunks of each row (default: %(default)s)")
    parser.add_argument("--answered", action="store_true", help="leave out questions that no chunk answers, as calibration needs")
    parser.add_argument("--attribution", action="store_true", help="write answers and the chunk that each of their sentences came from")
    parser.add_argument("--split", choices=SPLITS, default="eval", help="split whose names are used (default: %(default)s)")
    options = parser.parse_args()
    answered = options.answered or options.attribution
    kinds = {kind: share for kind, share in KINDS.items() if kind != "unanswered" or not answered}
    for row in rows(options.split, options.count, options.seed, options.chunks, kinds, options.attribution):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
