"""Attributions on the command line, and the examples of the documentation.

THRESHER_TEST_BINARY is the path of the daemon's binary.
"""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("THRESHER_TEST_BINARY", str(ROOT / "target/debug/thresher"))

ANSWER = "Alexander Fleming discovered penicillin in 1928. 😀 The tower is 330 metres high, and it was painted green.\n"
CHUNKS = [
    {
        "id": "fleming",
        "title": "Penicillin",
        "text": "It began — by chance. Alexander Fleming discovered penicillin in 1928, in London.",
        "metadata": {"url": "https://example.org/fleming"},
    },
    {"id": "tower/1", "text": "The tower is 324 metres high. It was finished in 1889."},
]


def attribute(**options):
    return response_to("attribute", {"answer": ANSWER, "chunks": CHUNKS, **options})


def response_to(command, request):
    run = subprocess.run([BINARY, command], input=json.dumps(request), capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise AssertionError(run.stderr)
    return json.loads(run.stdout)


class Formats(unittest.TestCase):
    def test_structured_output(self):
        answer = json.dumps({"name": "Alexander Fleming", "year": 1928, "notes": ["painted green"]})
        found = attribute(answer=answer, format="json")["formatted"]
        self.assertIsNone(found["fallback"])
        self.assertEqual(list(found["pointers"]), ["/name", "/year", "/notes/0"])
        self.assertEqual(found["pointers"]["/year"]["citations"][0]["chunk"], "fleming")
        self.assertEqual(found["pointers"]["/notes/0"], {"verdict": "not_found", "citations": []})
        prose = attribute(format="json")
        self.assertIn("not JSON that can be used", prose["formatted"]["fallback"])
        self.assertGreater(len(prose["parts"]), 1)


def without_scores(value):
    """The last digits of scores differ between processors."""
    if isinstance(value, dict):
        return {key: without_scores(inside) for key, inside in value.items() if key != "score"}
    return [without_scores(inside) for inside in value] if isinstance(value, list) else value


class Documented(unittest.TestCase):
    def test_the_example_of_the_readme_is_real_output(self):
        page = (ROOT / "README.md").read_text()
        request = json.loads(re.search(r"/v1/compress --json '(.*?)'$", page, re.MULTILINE | re.DOTALL)[1])
        shown = json.loads(re.search(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
        found = response_to("compress", request)
        self.assertEqual({name: found[name] for name in ("context", "usage")}, {name: shown[name] for name in ("context", "usage")})
        self.assertEqual([{name: citation[name] for name in shown["citations"][0]} for citation in found["citations"]], shown["citations"])
        answer = re.search(r'the model answers "(.*?)"', page)[1]
        (part,) = attribute(answer=answer, chunks=request["chunks"])["parts"]
        self.assertEqual(part["verdict"], "contradicted")
        self.assertEqual([(found["chunk"], found["source"]["text"]) for found in part["conflicts"]], [("light", "1874")])

    def test_the_first_example_of_attribution_is_real_output(self):
        request = json.loads((ROOT / "docs/examples/attribute.json").read_text())
        page = (ROOT / "docs/attribution.md").read_text()
        (text,) = re.findall(r"@docs/examples/attribute.json\n.*?^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        shown = json.loads(f"[{text}]".replace(", ...]", "]"))
        for part, example in zip(attribute(**request)["parts"], shown, strict=True):
            part["sources"] = part["sources"][:1]
            self.assertAlmostEqual(part.pop("support"), example.pop("support"), places=3)
            for name, value in without_scores(example).items():
                found = without_scores(part)[name]
                if name == "sources":
                    found = [{key: inside for key, inside in source.items() if key in value[0]} for source in found]
                self.assertEqual(found, value, name)

    def test_the_documented_examples_are_real_output(self):
        request = json.loads((ROOT / "docs/examples/attribute.json").read_text())
        page = (ROOT / "docs/attribution.md").read_text()
        examples = re.findall(r"^### `(\w+)`\n(.*?)^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(examples), 2)
        for dialect, words, example in examples:
            answer = re.search(r"the answer is\s+`(.*?)`", words)
            options = {"format": dialect} | ({"answer": answer[1]} if answer else {})
            with self.subTest(dialect):
                found = attribute(**{**request, **options})["formatted"]
                self.assertEqual(without_scores(found), without_scores(json.loads(example)))


if __name__ == "__main__":
    unittest.main()
