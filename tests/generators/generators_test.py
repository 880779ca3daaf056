"""openapi-python-client generates a client from the daemon's OpenAPI document, and the client works with the daemon."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

from daemon import Daemon

CHUNKS = [
    "Penicillium is a genus of moulds. Some of them ripen cheese.",
    "Alexander Fleming discovered penicillin in 1928, in London. Trains leave from there to Bristol.",
    "The tower is 324 metres high. It was finished in 1889.",
]
QUESTION = "Who discovered penicillin?"
# The generator does not know this media type of answers of upstreams, which may have any type.
UNKNOWN_MEDIA_TYPES = ("Unsupported content_type */*",)


def setUpModule():
    global client, daemon, document, warnings
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)
    folder = Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    document = urllib.request.urlopen(f"{daemon.url}/openapi.json").read()
    (folder / "openapi.json").write_bytes(document)
    # The hooks would format the code with a tool that is not installed.
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.yaml", "--meta", "none"]
    run = subprocess.run([*command, "--output-path", "generated"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    warnings = run.stdout + run.stderr
    sys.path.insert(0, str(folder))
    client = generated("").Client(base_url=daemon.url, raise_on_unexpected_status=True)


def generated(name):
    """A module of the generated client."""
    return importlib.import_module(f"generated.{name}".rstrip("."))


def models():
    return generated("models")


class PythonClient(unittest.TestCase):
    def test_every_operation_is_generated(self):
        import json

        operations = [operation for path in json.loads(document)["paths"].values() for operation in path.values()]
        for operation in operations:
            name = "".join(f"_{char.lower()}" if char.isupper() else char for char in operation["operationId"])
            with self.subTest(name):
                # The names of operations that end in digits are written in several ways.
                found = [generated(f"api.{operation['tags'][0]}")]
                folder = Path(found[0].__file__).parent
                self.assertIn(name.replace("_", ""), {file.stem.replace("_", "") for file in folder.glob("*.py")})
        reasons = [line for line in warnings.splitlines() if "nsupported" in line or "Cannot" in line or "ttempted" in line]
        unknown = [reason for reason in reasons if not any(known in reason for known in UNKNOWN_MEDIA_TYPES)]
        self.assertEqual(unknown, [])

    def test_compress(self):
        compress = generated("api.context.compress")
        for budget in (models().Budget(tokens=20), models().Budget(ratio=0.4), models().Budget(coverage=0.9), models().Budget(), None):
            with self.subTest(budget):
                chunks = [CHUNKS[0], *(models().ChunkObject(text, id=f"d{index}") for index, text in enumerate(CHUNKS[1:]))]
                options = {} if budget is None else {"budget": budget}
                body = models().CompressBody(query=QUESTION, chunks=chunks, granularity=models().Granularity.SENTENCE, **options)
                answer = compress.sync(client=client, body=body)
                self.assertIsInstance(answer, models().CompressAnswer)
                self.assertIn("Fleming", answer.context)
                self.assertTrue(answer.related)
                self.assertGreater(answer.answerable.probability, 0)
                self.assertEqual([chunk.id for chunk in answer.chunks], ["0", "d0", "d1"])

    def test_compress_a_conversation(self):
        message = models().MessagesBodyMessagesItem.from_dict({"role": "user", "content": "When is high water?"})
        answer = generated("api.headroom.compress_conversation").sync(client=client, body=models().MessagesBody(messages=[message]))
        self.assertIsInstance(answer, models().Messages)
        self.assertEqual(answer.messages[0].to_dict()["content"], "When is high water?")

    def test_attribute(self):
        body = models().AttributeBody(answer="Alexander Fleming discovered penicillin in 1938.", chunks=CHUNKS)
        answer = generated("api.context.attribute").sync(client=client, body=body)
        self.assertIsInstance(answer, models().AttributeAnswer)
        (part,) = answer.parts
        self.assertEqual(part.verdict, "contradicted")
        self.assertEqual((part.conflicts[0].text, part.conflicts[0].source.text), ("1938", "1928"))
        self.assertEqual(part.sources[0].index, 1)

    def test_rerank(self):
        rerank = generated("api.rerank.rerank_v2")
        answer = rerank.sync(client=client, body=models().RerankBody(query=QUESTION, documents=CHUNKS, top_n=1))
        self.assertEqual([result.index for result in answer.results], [1])
        texts = generated("api.rerank.rerank_tei").sync(client=client, body=models().TeiRerankBody(query=QUESTION, texts=CHUNKS))
        self.assertEqual(texts[0].index, 1)

    def test_registered_chunks(self):
        register = generated("api.registry.register_chunks")
        body = models().RegisterBody(chunks=[models().ChunkObject(text, id=f"g{index}") for index, text in enumerate(CHUNKS)], wait=True)
        self.assertEqual([change.status for change in register.sync(client=client, body=body).chunks], ["created"] * 3)
        search = generated("api.registry.search")
        answer = search.sync(client=client, body=models().SearchBody(query=QUESTION, limit=1))
        self.assertEqual([result.id for result in answer.results], ["g1"])

    def test_errors_have_codes(self):
        body = models().CompressBody(query=QUESTION, chunks=CHUNKS, budget=models().Budget(tokens=0))
        answer = generated("api.context.compress").sync_detailed(client=client, body=body)
        self.assertEqual(answer.status_code, 422)
        self.assertEqual((answer.parsed.error.code, answer.parsed.error.param), ("out_of_range", "budget.tokens"))


if __name__ == "__main__":
    unittest.main()
