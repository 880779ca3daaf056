"""The recipes in docs/recipes run, and the READMEs show parts of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from daemon import ROOT, Daemon

RECIPES = ROOT / "docs" / "recipes"
README = ROOT / "clients" / "python" / "README.md"
EXPECTED = {
    "with_client.py": ["[1] Cape Orrin Light was completed in 1874.", "supported ['history'] The light was"],
    "with_async_client.py": ["supported The light was completed in 1874.", "not_found It was painted green."],
    "with_langchain.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,", "contradicted 1874"],
    "with_llama_index.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,"],
    "with_haystack.py": ["history Cape Orrin Light was completed in 1874.", "[{'start': 0,"],
    "with_cohere.py": ["Fleming discovered penicillin in 1928."],
}

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Recipes(unittest.TestCase):
    def test_every_recipe_runs(self) -> None:
        self.assertEqual(sorted(path.name for path in RECIPES.glob("*.py")), sorted(EXPECTED))
        environment = {**os.environ, "THRESHER_URL": daemon.url, "HAYSTACK_TELEMETRY_ENABLED": "False"}
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
        self.assertEqual(len(shown), 7)
        for path, text in shown:
            with self.subTest(path):
                self.assertIn(text, Path(ROOT, path).read_text())

    def test_the_readme_of_the_project_shows_parts_of_recipes(self) -> None:
        shown = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        recipes = {path.name: path.read_text() for path in RECIPES.rglob("*.py")}
        sources = [[name for name, recipe in recipes.items() if block in recipe] for block in shown]
        self.assertNotIn([], sources, "a block is not part of any recipe")
        shown_elsewhere = {"with_async_client.py", "with_llama_cpp.py", "with_smollm2.py", "with_vllm.py"}
        self.assertEqual({name for names in sources for name in names} | shown_elsewhere, set(recipes))


if __name__ == "__main__":
    unittest.main()
