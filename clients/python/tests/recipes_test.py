"""The recipes in docs/recipes run, and the documentation shows parts of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from daemon import ROOT, Daemon, unused_port
from scripted_server import Answer, ScriptedServer

RECIPES = ROOT / "docs" / "recipes"
README = ROOT / "clients" / "python" / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial-python.md"
EXPECTED = {
    "with_client.py": ["[1] Cape Orrin Light was completed in 1874.", "supported ['history'] The light was"],
    "with_langchain.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,", "contradicted 1874"],
    "with_llama_index.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,"],
    "with_haystack.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,"],
    "with_cohere.py": ["Fleming discovered penicillin in 1928."],
    # The output that docs/tutorial-python.md shows.
    "with_any_model.py": [re.findall(r"^```text\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)[-1]],
}
MESSAGE = {"role": "assistant", "content": "The lighthouse was built in 1874. It was automated in 1978."}
CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}]}

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Recipes(unittest.TestCase):
    def test_every_recipe_runs(self) -> None:
        self.assertEqual(sorted(path.name for path in RECIPES.glob("*.py")), sorted(EXPECTED))
        llm = ScriptedServer(Answer(body=CHAT, headers={"Content-Type": "application/json"}))
        self.enterContext(llm)
        urls = {"THRESHER_URL": daemon.url, "LLM_URL": llm.url}
        environment = {**os.environ, **urls, "HAYSTACK_TELEMETRY_ENABLED": "False"}
        for name, expected in EXPECTED.items():
            with self.subTest(name):
                run = subprocess.run(
                    [sys.executable, RECIPES / name], env=environment, capture_output=True, text=True, timeout=120
                )
                self.assertEqual(run.returncode, 0, run.stderr)
                for words in expected:
                    self.assertIn(words, run.stdout)

    def test_the_readme_of_the_client_shows_parts_of_recipes(self) -> None:
        shown = re.findall(r"^```python\n# (docs/recipes/\S+)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(shown), len(re.findall(r"^```python$", README.read_text(), re.MULTILINE)))
        self.assertEqual(len(shown), 6)
        for path, text in shown:
            with self.subTest(path):
                self.assertIn(text, Path(ROOT, path).read_text())

    def test_the_recipe_without_a_daemon_asks_with_all_chunks(self) -> None:
        llm = ScriptedServer(Answer(body=CHAT, headers={"Content-Type": "application/json"}))
        self.enterContext(llm)
        environment = {**os.environ, "THRESHER_URL": f"http://127.0.0.1:{unused_port()}", "LLM_URL": llm.url}
        run = subprocess.run(
            [sys.executable, RECIPES / "with_any_model.py"], env=environment, capture_output=True, text=True, timeout=120
        )
        self.assertEqual(run.stdout, f"without Thresher: connection_failed\n\n{MESSAGE['content']}\n", run.stderr)
        (request,) = llm.requests
        self.assertIn("Trains leave at 7:15", request.body["messages"][0]["content"])

    def test_every_python_block_of_the_documentation_is_part_of_a_recipe(self) -> None:
        pages = [ROOT / "README.md", README, *(ROOT / "docs").glob("*.md")]
        found = [re.findall(r"^```python\n(?:# docs/recipes/\S+\n)?(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL) for page in pages]
        recipes = {path.name: path.read_text() for path in RECIPES.rglob("*.py")}
        sources = {block: [name for name, recipe in recipes.items() if block in recipe] for blocks in found for block in blocks}
        self.assertEqual([block for block, names in sources.items() if not names], [], "a block is not part of any recipe")
        # docs/kv-export.md describes these two without a block of them.
        without_block = {"with_llama_cpp.py", "with_smollm2.py"}
        self.assertEqual({name for names in sources.values() for name in names} | without_block, set(recipes))


if __name__ == "__main__":
    unittest.main()
