import assert from "node:assert/strict";
import test from "node:test";
import { parseChunks, readFile, readPasted, requestChunks } from "../src/lib/chunks";

const texts = ({ chunks }) => chunks.map((chunk) => chunk.text);

test("blank lines divide pasted text", () => {
  const check = (text, expect) => assert.deepEqual(texts(readPasted(text, "paragraphs")), expect, JSON.stringify(text));
  check("One.\n\nTwo.", ["One.", "Two."]);
  check("One\nstill one.\r\n \r\n\r\nTwo.\n", ["One\nstill one.", "Two."]);
  check("\n\n\n", []);
  check("  indented\n\n\tcode", ["  indented", "\tcode"]);
});

test("pasted text can stay whole", () => {
  assert.deepEqual(texts(readPasted("One.\n\nTwo.\n", "whole")), ["One.\n\nTwo."]);
});

test("JSON and JSON Lines of chunks are read as chunks", () => {
  const check = (text, expect) => assert.deepEqual(readPasted(text, "paragraphs"), expect, text);
  check('["a", {"id": 7, "title": "T", "text": "b", "kind": "log", "metadata": {"n": 1}}]', {
    chunks: [{ text: "a" }, { id: "7", title: "T", text: "b", kind: "log", metadata: { n: 1 } }],
  });
  const placed = { pages: [{ start: 0, page: 3 }], line: 7, text: "a" };
  check(JSON.stringify([placed]), { chunks: [placed] });
  assert.deepEqual(requestChunks([placed]), [placed]);
  check('{"query": "q", "chunks": ["a"]}', { chunks: [{ text: "a" }], query: "q" });
  check('{"text": "a"}\n{"text": "b"}\n', { chunks: [{ text: "a" }, { text: "b" }] });
  // A kind that the daemon does not know is left out.
  check('[{"text": "a", "kind": "poem"}]', { chunks: [{ text: "a" }] });
});

test("JSON of another form is text", () => {
  for (const text of ['{"a": 1}', "[1, 2]", '{"text": 5}\n{"text": "b"}', '{"text": "a"}\nnot JSON', "[]"]) {
    assert.deepEqual(texts(readPasted(text, "paragraphs")), [text]);
  }
});

test("a file is one chunk with its name as title, unless it holds chunks", () => {
  assert.deepEqual(readFile("a.log", "x\n\ny"), { chunks: [{ title: "a.log", text: "x\n\ny" }] });
  assert.deepEqual(readFile("a.JSON", '["x"]'), { chunks: [{ text: "x" }] });
  assert.deepEqual(readFile("a.json", '{"x": 1}'), { chunks: [{ title: "a.json", text: '{"x": 1}' }] });
  assert.deepEqual(readFile("a.jsonl", '"x"\n{"text": "y"}'), { chunks: [{ text: "x" }, { text: "y" }] });
  // A text file may look like JSON.
  assert.deepEqual(readFile("a.txt", '["x"]'), { chunks: [{ title: "a.txt", text: '["x"]' }] });
  assert.deepEqual(readFile("empty.txt", " \n"), { chunks: [] });
});

test("the editor says which chunk is wrong", () => {
  assert.deepEqual(parseChunks('["a"]'), [{ text: "a" }]);
  assert.throws(() => parseChunks('["a", 5]'), /Chunk 2: expected a string/);
  assert.throws(() => parseChunks("{}"), /Expected a list/);
  assert.throws(() => parseChunks("["), SyntaxError);
});

test("the request leaves out what says nothing", () => {
  assert.deepEqual(
    requestChunks([
      { text: "a", kind: "auto", title: "" },
      { text: "b", kind: "code", key: 4 },
      { id: "c", text: "c", metadata: null },
    ]),
    ["a", { kind: "code", text: "b" }, { id: "c", metadata: null, text: "c" }],
  );
});
