#!/usr/bin/env python3
"""Fits the documentation of this repository into the site that mdBook builds from book.toml.

As a preprocessor of mdBook ("book.py supports RENDERER", or without arguments the book on standard input), this script

- names the pages that docs/SUMMARY.md takes from outside docs/ after their titles: the site has no place for "../README.md";
- names a README.md of a folder in docs/ index.md: mdBook would rename the page, but not the links to it;
- rewrites relative links between pages, and links to other files of the repository, which are in files/ in the site. A link to
  a folder leads to the README.md in it;
- makes links of code spans that name a page or a file of docs/ or config/, such as `docs/api.md`. In the repository they are plain text.

"book.py files SITE" copies the files that the pages in SITE link to into SITE/files.
"book.py names FILE..." checks that every `docs/NAME.md` in code spans of these Markdown files is the name of a page.

It needs only the standard library of Python 3.8 or later.
"""

import json
import os
import posixpath
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
FILES = "files"  # the folder of the site for files from outside docs/

FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
# The target of an inline link or image, without its title.
INLINE = re.compile(r"(\]\()([^()\s<>]+)(?=[)\s])")
DEFINITION = re.compile(r"^(\[[^\]]+\]:\s+)(\S+)")
# A code span that names a page or a file, with or without the name of a section.
NAMED = re.compile(r"^[\w./-]+\.\w+(#[\w-]+)?$")


class BookError(Exception):
    """An error that names the page and what is wrong with it."""


def main(arguments):
    try:
        if arguments[:1] == ["supports"]:
            sys.exit(0 if arguments[1:] == ["html"] else 1)
        elif arguments[:1] == ["files"]:
            copy_files(Path(arguments[1]))
        elif arguments[:1] == ["names"]:
            check_names(arguments[1:])
        else:
            _context, book = json.load(sys.stdin)
            json.dump(fitted(book), sys.stdout)
    except BookError as error:
        sys.exit("error: {}".format(error))


def fitted(book):
    """Returns the book with the paths and links of the site."""
    chapters = list(chapters_of(book["items"]))
    pages = {}  # the path of each page: in the repository, then in the site
    for chapter in chapters:
        source = posixpath.normpath(posixpath.join(DOCS, chapter["path"]))
        page = posixpath.relpath(source, DOCS)
        if page.startswith("../"):
            page = re.sub(r"\W+", "-", chapter["name"].lower()).strip("-") + ".md"
        elif posixpath.basename(page) == "README.md":
            page = posixpath.join(posixpath.dirname(page), "index.md")
        if page in pages.values():
            raise BookError("two pages of docs/SUMMARY.md would both be {}: change the title of one".format(page))
        pages[source] = page
        chapter["source"] = source
    for chapter in chapters:
        source = chapter.pop("source")
        chapter["content"] = Page(source, pages).rewritten(chapter["content"])
        chapter["path"] = pages[source]
    return book


def chapters_of(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter is not None:
            if chapter["path"] is not None:
                yield chapter
            yield from chapters_of(chapter["sub_items"])


class Page:
    """The links of one page."""

    def __init__(self, source, pages):
        self.source = source
        self.pages = pages

    def rewritten(self, text):
        """Returns the text with the links of the site."""
        return "".join(line if is_code else self.line(line) for line, is_code in lines_of(text))

    def line(self, line):
        parts, at = [], 0
        for span in CODE.finditer(line):
            # A span within the text of a link is part of that link.
            in_link = re.match(r"[^\[\]]*\]\(", line[span.end():]) is not None
            parts += [self.links(line[at:span.start()]), span[0] if in_link else self.named(span)]
            at = span.end()
        return "".join(parts) + self.links(line[at:])

    def links(self, text):
        def target(match):
            return match[1] + self.target(match[2])

        return DEFINITION.sub(target, INLINE.sub(target, text))

    def target(self, url):
        """Returns the target of a link in the site."""
        parts = urlsplit(url)
        if parts.scheme or parts.netloc or not parts.path:
            return url
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.source), unquote(parts.path)))
        if (ROOT / path).is_dir():
            path = posixpath.join(path, "README.md")  # the site has no pages of folders
        if path.startswith("../") or not (ROOT / path).is_file():
            raise BookError("{} links to {}: there is no file {}".format(self.source, url, path))
        return self.link_to(path, parts.fragment)

    def named(self, span):
        """Returns a code span, with a link if it names another page or a file that the site has."""
        name, _, fragment = span[2].partition("#")
        is_shown = name in self.pages or name.startswith(("docs/", "config/")) and (ROOT / name).is_file()
        if not NAMED.match(span[2]) or not is_shown or name == self.source:
            return span[0]
        return "[{}]({})".format(span[0], self.link_to(name, fragment))

    def link_to(self, path, fragment=""):
        page = self.pages.get(path)
        if page is None:
            within = posixpath.relpath(path, DOCS)
            page = posixpath.join(FILES, path) if within.startswith("../") else within
        here = posixpath.dirname(self.pages[self.source])
        return posixpath.relpath(page, here or ".") + ("#" + fragment if fragment else "")


def lines_of(text):
    """Yields each line, and whether it belongs to a fenced code block."""
    fence = None
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
            yield line, True
        elif fence is not None:
            yield line, True
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
        else:
            yield line, False


class Targets(HTMLParser):
    """Collects the targets of links and images."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attributes):
        self.found.update(value for name, value in attributes if name in ("href", "src") and value)


def copy_files(site):
    for page in site.rglob("*.html"):
        targets = Targets()
        targets.feed(page.read_text(encoding="utf-8"))
        for target in targets.found:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = posixpath.normpath(posixpath.join(page.parent.relative_to(site).as_posix(), unquote(parts.path)))
            if not file.startswith(FILES + "/"):
                continue
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / posixpath.relpath(file, FILES), site / file)


def check_names(files):
    wrong = []
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        for number, (line, is_code) in enumerate(lines_of(text), 1):
            for span in [] if is_code else CODE.finditer(line):
                name = span[2].partition("#")[0]
                if re.match(r"^docs/[\w./-]+\.md$", name) and not os.path.exists(ROOT / name):
                    wrong.append("{}:{}: there is no page {}".format(file, number, name))
    if wrong:
        raise BookError("code spans name pages that do not exist\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
