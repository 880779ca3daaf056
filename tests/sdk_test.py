"""Citations in the formats of other APIs, parsed with the types of their official Python clients.

`make test` sets THRESHER_TEST_SDK to the directory of the clients. THRESHER_TEST_BINARY is the path of the daemon's binary.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, os.environ.get("THRESHER_TEST_SDK", str(ROOT / "models/.cache/sdk")))

from anthropic.types import TextBlock  # noqa: E402
from openai.types.chat import ChatCompletionMessage  # noqa: E402
from openai.types.responses import ResponseOutputMessage  # noqa: E402

BINARY = os.environ.get("THRESHER_TEST_BINARY", str(ROOT / "target/debug/thresher"))

ANSWER = "Alexander Fleming discovered penicillin in 1928. 😀 The tower is 330 metres high, and it was painted green.\n"
SENTENCES = [
    "Alexander Fleming discovered penicillin in 1928.",
    "The tower is 330 metres high, and it was painted green.",
]
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


class Dialects(unittest.TestCase):
    def blocks(self, dialect):
        found = attribute(format=dialect)["formatted"]
        blocks = [TextBlock.model_validate(block) for block in found]
        self.assertEqual("".join(block.text for block in blocks), ANSWER, "the blocks are the answer")
        return blocks, [citation for block in blocks for citation in block.citations or []]

    def test_anthropic_documents(self):
        blocks, citations = self.blocks("anthropic_document")
        self.assertEqual({type(c).__name__ for c in citations}, {"CitationCharLocation"})
        self.assertIn("fleming", [CHUNKS[c.document_index]["id"] for c in citations])
        for citation in citations:
            text = CHUNKS[citation.document_index]["text"]
            self.assertEqual(text[citation.start_char_index : citation.end_char_index], citation.cited_text)
            self.assertEqual(citation.document_title, CHUNKS[citation.document_index].get("title"))

    def test_anthropic_search_results(self):
        _, citations = self.blocks("anthropic_search_result")
        self.assertEqual({type(c).__name__ for c in citations}, {"CitationsSearchResultLocation"})
        first = next(c for c in citations if c.search_result_index == 0)
        self.assertEqual((first.source, first.title), ("https://example.org/fleming", "Penicillin"))
        for citation in citations:
            self.assertIn(citation.cited_text, CHUNKS[citation.search_result_index]["text"])
            self.assertEqual((citation.start_block_index, citation.end_block_index), (0, 1))

    def test_openai_responses(self):
        message = ResponseOutputMessage.model_validate(attribute(format="openai_responses")["formatted"])
        (text,) = message.content
        self.assertEqual(text.text, ANSWER)
        kinds = {type(a).__name__: a for a in text.annotations}
        url = kinds["AnnotationURLCitation"]
        self.assertEqual((url.url, url.title), ("https://example.org/fleming", "Penicillin"))
        self.assertEqual(ANSWER[url.start_index : url.end_index], "Alexander Fleming discovered penicillin in 1928.")
        for annotation in text.annotations:
            if type(annotation).__name__ == "AnnotationFileCitation":
                self.assertEqual((annotation.file_id, annotation.filename), ("tower/1", "tower/1"))

    def test_openai_chat(self):
        message = ChatCompletionMessage.model_validate(attribute(format="openai_chat")["formatted"])
        self.assertEqual(message.content, ANSWER)
        cited = [annotation.url_citation for annotation in message.annotations]
        self.assertIn("https://example.org/fleming", [citation.url for citation in cited])
        for citation in cited:
            self.assertIn(ANSWER[citation.start_index : citation.end_index], SENTENCES)
            self.assertTrue(citation.url.startswith(("https://", "urn:thresher:chunk:")))

    def test_an_unsupported_part_has_no_citation(self):
        (block, *_) = [b for b in self.blocks("anthropic_document")[0] if "green" in b.text]
        self.assertIsNone(block.citations)

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
        self.assertEqual(len(examples), 6)
        for dialect, words, example in examples:
            answer = re.search(r"the answer is\s+`(.*?)`", words)
            options = {"format": dialect} | ({"answer": answer[1]} if answer else {})
            with self.subTest(dialect):
                found = attribute(**{**request, **options})["formatted"]
                self.assertEqual(without_scores(found), without_scores(json.loads(example)))


if __name__ == "__main__":
    unittest.main()
