import assert from "node:assert/strict";
import test from "node:test";
import { firstEndingAfter, piecesOf, segmentsOf, subtract, trimStart, utf16Offsets, wordsOf } from "../src/lib/text";

/** Ranges of the given strings in a text, each found after the one before it. */
function ranges(text, ...parts) {
  let at = 0;
  return parts.map((part) => {
    const start = text.indexOf(part, at);
    assert.ok(start >= 0, part);
    at = start + part.length;
    return { start, end: at };
  });
}

test("tokens are joined to words", () => {
  const check = (text, tokens, expect) => {
    const words = wordsOf(text, ranges(text, ...tokens));
    assert.deepEqual(words.map((word) => text.slice(word.start, word.end)), expect, text);
  };
  check("Cape Orrin.", ["Cape", "Orr", "in", "."], ["Cape", "Orrin", "."]);
  check("2025-03", ["202", "5", "-", "03"], ["2025", "-", "03"]);
  check("naïve café", ["na", "ïve", "caf", "é"], ["naïve", "café"]);
  // Chinese has no spaces, so its tokens are its words.
  check("東京都 x", ["東", "京", "都", "x"], ["東", "京", "都", "x"]);
  // Tokens of decoders begin with a space.
  check("as its maker", ["as", " its", " mak", "er"], ["as", "its", "maker"]);
  // A letter beyond the basic plane takes two code units.
  check("𝔸𝔹 c", ["𝔸", "𝔹", "c"], ["𝔸𝔹", "c"]);
  check("a  b", ["a", " ", "b"], ["a", "b"]);
  check("", [], []);
});

test("a word knows its tokens", () => {
  const text = "Orrin was";
  assert.deepEqual(wordsOf(text, ranges(text, "Orr", "in", "was")).map((word) => word.tokens), [[0, 1], [2]]);
});

test("ranges are subtracted", () => {
  const check = (from, minus, expect) => {
    const list = (pairs) => pairs.map(([start, end]) => ({ start, end }));
    assert.deepEqual(subtract(list(from), list(minus)), list(expect));
  };
  check([[0, 10]], [], [[0, 10]]);
  check([[0, 10]], [[3, 5]], [[0, 3], [5, 10]]);
  check([[0, 10]], [[0, 10]], []);
  check([[0, 10]], [[-5, 2], [8, 20]], [[2, 8]]);
  check([[0, 4], [6, 9]], [[3, 7]], [[0, 3], [7, 9]]);
  check([[0, 10]], [[2, 4], [4, 6]], [[0, 2], [6, 10]]);
  check([], [[0, 1]], []);
});

test("segments cover the whole text in order", () => {
  const text = "Kept. Near. Cut.";
  const [kept, near] = ranges(text, "Kept.", "Near.");
  const segments = segmentsOf(text, [{ ...kept, score: 0.5 }], [near]);
  assert.deepEqual(
    segments.map((segment) => [text.slice(segment.start, segment.end), segment.fate, segment.score]),
    [["Kept.", "kept", 0.5], [" ", "space", null], ["Near.", "near", null], [" Cut.", "cut", null]],
  );
  assert.equal(segments.map((segment) => text.slice(segment.start, segment.end)).join(""), text);
  assert.deepEqual(segmentsOf("", [], []), []);
  assert.deepEqual(segmentsOf("a", [], []).map((segment) => segment.fate), ["cut"]);
});

test("only marked words become pieces", () => {
  const text = "The ferry leaves.";
  const words = ranges(text, "The", "ferry", "leaves");
  const check = (range, isMarked, expect) => {
    const pieces = piecesOf(range, words, isMarked);
    assert.deepEqual(pieces.map((piece) => [text.slice(piece.start, piece.end), piece.word]), expect);
  };
  check({ start: 0, end: text.length }, (word) => word === 1, [["The ", null], ["ferry", 1], [" leaves.", null]]);
  check({ start: 0, end: text.length }, () => false, [[text, null]]);
  // A word that reaches into the segment is cut at its border.
  check({ start: 6, end: 12 }, () => true, [["rry", 1], [" ", null], ["le", 2]]);
  check({ start: 3, end: 4 }, () => true, [[" ", null]]);
});

test("binary search finds the first range that ends after a position", () => {
  const list = [{ start: 0, end: 3 }, { start: 4, end: 9 }];
  assert.deepEqual([-1, 0, 2, 3, 8, 9].map((at) => firstEndingAfter(list, at)), [0, 0, 0, 1, 1, 2]);
});

test("byte offsets become offsets in UTF-16 code units", () => {
  const text = "aé東𝔸!";
  const bytes = [...text].map((_, index) => Buffer.byteLength([...text].slice(0, index).join("")));
  assert.deepEqual(utf16Offsets(text, bytes), [0, 1, 2, 3, 5]);
  assert.deepEqual(utf16Offsets(text, [10, 0, 3]), [5, 0, 2]);
  assert.deepEqual(utf16Offsets(text, [999]), [text.length]);
});

test("space before a token is not part of it", () => {
  assert.deepEqual(trimStart("a b", { start: 1, end: 3 }), { start: 2, end: 3 });
  assert.deepEqual(trimStart("a  ", { start: 1, end: 3 }), { start: 3, end: 3 });
});
