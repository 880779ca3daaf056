"""Tests of scripts/results.py: which numbers of a page count as those of a file of results. `make docs` checks the pages."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # noqa: E402

FILE = "kv-handover-2026-11-27.txt"


class Checked(unittest.TestCase):
    def check(self, how, body, expect):
        text = "first line\n<!-- results-{0}: {1} -->\n{2}\n<!-- /results-{0} -->".format(how, FILE, body)
        with self.subTest(body):
            self.assertEqual(list(results.unsourced("page", text, results.CHECKED.search(text))), expect)

    def test_a_number_is_one_of_the_file_rounded(self):
        self.check("file", "2.311, 2.31, 2.3 and +2.3, 2,532 tokens, of SmolLM2-135M with transformers 99.1.7", [])
        self.check("file", "2.31\nand 2.312", ["page:4: 2.312 is not in docs/results/" + FILE])

    def test_the_numbers_of_a_row_are_those_of_one_line(self):
        self.check("rows", "| RC of 77 | 0.65 [0.49, 0.82] | 0.095 |", [])
        self.check("rows", "| RC | 0.65 | 0.269 |", ["page:3: no line of docs/results/" + FILE + " has 0.65, 0.269"])

    def test_numbers_have_units_and_rounding(self):
        for text, expect in [("1.73 million tokens/s", [("1.73 million", 1.73e6, 5e3)]), ("f16, v1.2.3, 2x", []), ("1/4 [-0.5, 8]", [("1", 1, 0.5), ("4", 4, 0.5), ("-0.5", -0.5, 0.05), ("8", 8, 0.5)])]:
            with self.subTest(text):
                self.assertEqual(list(results.numbers(text)), expect)


if __name__ == "__main__":
    unittest.main()
