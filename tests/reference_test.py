"""Tests of scripts/reference.py: what it takes for the names of a table, and for those of the code. `make docs` compares the pages."""

import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import reference  # noqa: E402


class Names(unittest.TestCase):
    def test_of_a_table_are_the_code_spans_of_its_first_column(self):
        for table, expect in [
            ("| field | contains |\n|---|---|\n| `a`, `b` (default) | `c` |\n", {"a", "b"}),
            ("| command | does |\n|---|---|\n| `thresher key new`, `tenant delete` | keys |\n", {"key", "tenant"}),
        ]:
            with self.subTest(table):
                self.assertEqual(reference.first_column(table), expect)

    def test_of_the_code_are_those_that_users_meet(self):
        document = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
        headers = reference.headers_of(document)
        for what, contained, missing in [
            ("headers", {"x-thresher", "x-thresher-hops", "x-thresher-key"}, {"x-request-id"}),
            ("headers of /v1/messages", {"x-thresher-reason"}, {"x-thresher-compress"}),
            ("commands", {"init", "health"}, {"man"}),
            ("OnError", {"fail"}, set()),
            ("CompressBody", {"query"}, {"id"}),
        ]:
            with self.subTest(what):
                found = reference.names_of(what, document, headers)
                self.assertLessEqual(contained, found)
                self.assertFalse(missing & found)

    def test_a_difference_names_the_place_and_both_sides(self):
        self.assertEqual(list(reference.differences("page:1", {"a", "b"}, {"b", "c"})), ["page:1 lacks c", "page:1 has, unlike the code, a"])


if __name__ == "__main__":
    unittest.main()
