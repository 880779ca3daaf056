"""Tests of scripts/book.py: how it rewrites the links of a page for the site. scripts/book.sh checks the links of the whole site."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import book  # noqa: E402

PAGES = {"README.md": "introduction.md", "docs/api.md": "api.md", "docs/models.md": "models.md", "clients/python/README.md": "python.md"}


class Links(unittest.TestCase):
    def check(self, source, text, expect):
        with self.subTest(text, source=source):
            self.assertEqual(book.Page(source, PAGES).rewritten(text), expect)

    def test_links_lead_to_pages_and_files_of_the_site(self):
        for source, text, expect in [
            ("README.md", "[a](docs/api.md#x) and ![b](docs/images/compress.png)", "[a](api.md#x) and ![b](images/compress.png)"),
            ("docs/api.md", '[a](../README.md "title")', '[a](introduction.md "title")'),
            ("docs/api.md", "[a](models.md), [b](#here), [c](https://example.com/x.md)", "[a](models.md), [b](#here), [c](https://example.com/x.md)"),
            ("clients/python/README.md", "[a](../../README.md)", "[a](introduction.md)"),
            ("docs/api.md", "[a](../src/main.rs)", "[a](files/src/main.rs)"),
            ("docs/api.md", "[a](../models/tiny/../facts)", "[a](files/models/facts/README.md)"),
            ("docs/api.md", "[a]: ../README.md\n", "[a]: introduction.md\n"),
        ]:
            self.check(source, text, expect)

    def test_names_of_pages_become_links(self):
        for source, text, expect in [
            ("README.md", "see `docs/api.md`.", "see [`docs/api.md`](api.md)."),
            ("README.md", "| `docs/api.md#x` |", "| [`docs/api.md#x`](api.md#x) |"),
            ("docs/api.md", "`docs/api.md`, `README.md`", "`docs/api.md`, [`README.md`](introduction.md)"),
            ("docs/api.md", "`config/thresher.toml`", "[`config/thresher.toml`](files/config/thresher.toml)"),
            ("docs/api.md", "`src/main.rs`, `docs/*.md`, `a[0](b)`", "`src/main.rs`, `docs/*.md`, `a[0](b)`"),
            ("README.md", "[`docs/api.md`](docs/models.md)", "[`docs/api.md`](models.md)"),
            ("README.md", "[see `docs/api.md` first](docs/models.md)", "[see `docs/api.md` first](models.md)"),
        ]:
            self.check(source, text, expect)

    def test_code_is_left_alone(self):
        for text in ["```\n[a](nope.md) `docs/api.md`\n```\n", "~~~~\n```\n[a](nope.md)\n~~~~\n", "`` [a](nope.md) ` ``"]:
            self.check("README.md", text, text)

    def test_links_to_nothing_are_errors(self):
        for source, text in [
            ("docs/api.md", "[a](nope.md)"),
            ("docs/api.md", "![a](images/nope.png)"),
            ("docs/api.md", "[a](../config)"),
            ("docs/api.md", "[a](../../etc/passwd)"),
            ("docs/api.md", "[a](/docs/models.md)"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(book.BookError, "^docs/api.md links to "):
                book.Page(source, PAGES).rewritten(text)


class Chapters(unittest.TestCase):
    def chapter(self, name, path, content="", sub_items=()):
        return {"Chapter": {"name": name, "path": path, "content": content, "sub_items": list(sub_items)}}

    def test_pages_from_outside_the_documentation_are_named_after_their_titles(self):
        inner = self.chapter("B", "../README.md")
        items = [self.chapter("The API", "api.md", "`README.md`", [inner]), "Separator", {"PartTitle": "x"}, self.chapter("Draft", None)]
        book.fitted({"items": items})
        self.assertEqual(items[0]["Chapter"]["content"], "[`README.md`](b.md)")
        self.assertEqual((items[0]["Chapter"]["path"], inner["Chapter"]["path"]), ("api.md", "b.md"))

    def test_the_page_of_a_folder_is_its_index(self):
        inner = self.chapter("Clients", "decisions/clients.md", "[all](README.md)")
        items = [self.chapter("Decisions", "decisions/README.md", "[one](clients.md)", [inner])]
        book.fitted({"items": items})
        self.assertEqual((items[0]["Chapter"]["path"], items[0]["Chapter"]["content"]), ("decisions/index.md", "[one](clients.md)"))
        self.assertEqual(inner["Chapter"]["content"], "[all](index.md)")

    def test_two_pages_with_one_name_are_an_error(self):
        items = [self.chapter("A", "api.md"), self.chapter("API", "../README.md")]
        with self.assertRaisesRegex(book.BookError, "both be api.md"):
            book.fitted({"items": items})


if __name__ == "__main__":
    unittest.main()
