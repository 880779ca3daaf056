import assert from "node:assert/strict";
import test from "node:test";
import { explainWords, heatLevel, litWords, TITLE } from "../src/lib/explanation";

const QUERY = "who built it?";
const TEXTS = ["Ann built it.", "The builder slept."];
const EXPLAIN = {
  query: [{ start: 0, end: 3 }, { start: 4, end: 9 }, { start: 10, end: 12 }, { start: 12, end: 13 }],
  chunks: [
    {
      id: "0",
      tokens: [
        { start: 0, end: 3, rc: 0.1 },
        { start: 4, end: 9, rc: 0.4 },
        { start: 10, end: 12, rc: 0.05 },
        { start: 12, end: 13, rc: 0.9 },
      ],
      query: [
        { rc: 0.3, source: { start: 0, end: 3 } },
        { rc: 0.8, source: { start: 4, end: 9 } },
        { rc: 0.1, source: { start: 4, end: 9 } },
        { rc: 0.5, source: { start: 12, end: 13 } },
      ],
    },
    {
      id: "1",
      tokens: [
        { start: 0, end: 3, rc: 0 },
        { start: 4, end: 9, rc: 0.2 },
        { start: 9, end: 11, rc: 0.3 },
        { start: 12, end: 17, rc: 0 },
        { start: 17, end: 18, rc: 0 },
      ],
      query: [
        { rc: 0, source: null },
        { rc: 0.5, source: { start: 9, end: 11 } },
        { rc: 0.01, source: { start: 0, end: 3 } },
        { rc: 0.1, source: null },
      ],
    },
  ],
};

test("words of the question have the text that they matched in each chunk", () => {
  const words = explainWords(QUERY, TEXTS, EXPLAIN);
  // The question mark is no word.
  assert.deepEqual(words.question.map(({ start, end }) => QUERY.slice(start, end)), ["who", "built", "it"]);
  const [who, built, it] = words.question;
  assert.deepEqual(who.matches, [{ rc: 0.3, word: 0 }, null]);
  // "build" and "er" are one word.
  assert.deepEqual(built.matches, [{ rc: 0.8, word: 1 }, { rc: 0.5, word: 1 }]);
  assert.equal(built.best, 0);
  // Far weaker than the best match, so it counts for nothing.
  assert.deepEqual(it.matches, [{ rc: 0.1, word: 1 }, null]);
  assert.deepEqual([...words.chunks[0].matchedBy], [[0, [0]], [1, [1, 2]]]);
});

test("the RC of a word is the largest of its tokens, and punctuation has none", () => {
  const { chunks, rcMax } = explainWords(QUERY, TEXTS, EXPLAIN);
  assert.deepEqual(chunks[0].rc, [0.1, 0.4, 0.05, 0]);
  assert.deepEqual(chunks[1].rc, [0, 0.3, 0, 0]);
  assert.equal(rcMax, 0.4);
});

test("the best match lights up brighter than the others", () => {
  const words = explainWords(QUERY, TEXTS, EXPLAIN);
  assert.deepEqual([...litWords(words, 1)], [[0, new Map([[1, "best"]])], [1, new Map([[1, "other"]])]]);
  assert.equal(litWords(words, 99).size, 0);
});

test("a word that matched a title has no place in the text", () => {
  const explain = { query: [{ start: 0, end: 3 }], chunks: [{ id: "0", tokens: [], query: [{ rc: 1, source: null }] }] };
  const words = explainWords("who", ["x"], explain);
  assert.deepEqual(words.question[0].matches, [{ rc: 1, word: null }]);
  assert.equal(words.question[0].best, 0);
  assert.deepEqual([...litWords(words, 0)], [[0, new Map([[TITLE, "best"]])]]);
});

test("nothing matches if all RC is zero", () => {
  const explain = { query: [{ start: 0, end: 3 }], chunks: [{ id: "0", tokens: [{ start: 0, end: 1, rc: 0 }], query: [{ rc: 0, source: { start: 0, end: 1 } }] }] };
  const { question, rcMax } = explainWords("who", ["x"], explain);
  assert.equal(question[0].best, null);
  assert.equal(rcMax, 0);
});

test("heat has five levels", () => {
  assert.deepEqual([0, 0.1, 0.2, 0.5, 0.79, 0.8, 1].map((rc) => heatLevel(rc, 1)), [0, 0, 1, 2, 3, 4, 4]);
  assert.equal(heatLevel(0.5, 0), 0);
});
