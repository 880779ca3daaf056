// Reads chunks from what a person pastes, drops or edits.
import { type Chunk, KINDS, type Kind } from "./api";

export interface ReadChunks {
  chunks: Chunk[];
  /** The question, if the text is a whole request. */
  query?: string;
}

/** How pasted text that is not JSON is divided. */
export type Division = "paragraphs" | "whole";

/** Reads pasted text: a JSON list of chunks, a request with `chunks`, JSON Lines of chunks, or plain text. */
export function readPasted(text: string, division: Division): ReadChunks {
  const structured = readJson(text) ?? readJsonLines(text);
  if (structured) return structured;
  const pieces = division === "whole" ? [text] : text.split(/\r?\n(?:[ \t]*\r?\n)+/);
  return { chunks: pieces.map((piece) => ({ text: piece.replace(/^\s*\n|\s+$/g, "") })).filter((chunk) => chunk.text.trim() !== "") };
}

/** Reads a file: JSON and JSON Lines of chunks as those chunks, any other file as one chunk with the file's name as its title. */
export function readFile(name: string, text: string): ReadChunks {
  const extension = /\.([^.]+)$/.exec(name)?.[1]?.toLowerCase();
  const structured =
    extension === "json" ? readJson(text) : extension === "jsonl" || extension === "ndjson" ? readJsonLines(text) : null;
  if (structured) return structured;
  return { chunks: text.trim() === "" ? [] : [{ title: name, text }] };
}

/** Reads the JSON list of chunks of the editor. Throws an Error that says which value is wrong. */
export function parseChunks(json: string): Chunk[] {
  const value: unknown = JSON.parse(json);
  if (!Array.isArray(value)) throw new Error("Expected a list of chunks.");
  return value.map((item, index) => {
    const chunk = toChunk(item);
    if (!chunk) throw new Error(`Chunk ${index + 1}: expected a string, or an object with the string "text".`);
    return chunk;
  });
}

/** The chunks as the request sends them: fields that say nothing are left out, and a chunk that is only text becomes a string. */
export function requestChunks(chunks: readonly Chunk[]): (Chunk | string)[] {
  return chunks.map(({ id, title, text, kind, metadata, pages, line }) => {
    const named = {
      ...(id ? { id } : {}),
      ...(title ? { title } : {}),
      ...(kind && kind !== "auto" ? { kind } : {}),
      ...(metadata === undefined ? {} : { metadata }),
      ...(pages === undefined ? {} : { pages }),
      ...(line === undefined ? {} : { line }),
    };
    return Object.keys(named).length === 0 ? text : { ...named, text };
  });
}

function readJson(text: string): ReadChunks | null {
  const value = tryParse(text);
  if (Array.isArray(value)) return fromList(value);
  if (isObject(value) && Array.isArray(value.chunks)) {
    const read = fromList(value.chunks);
    return read && typeof value.query === "string" ? { ...read, query: value.query } : read;
  }
  return null;
}

function readJsonLines(text: string): ReadChunks | null {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length === 0 || !/^\s*["{]/.test(lines[0]!)) return null;
  return fromList(lines.map(tryParse));
}

function fromList(items: readonly unknown[]): ReadChunks | null {
  const chunks = items.map(toChunk);
  const isComplete = chunks.length > 0 && chunks.every((chunk) => chunk !== null);
  return isComplete ? { chunks: chunks as Chunk[] } : null;
}

function toChunk(value: unknown): Chunk | null {
  if (typeof value === "string") return { text: value };
  if (!isObject(value) || typeof value.text !== "string") return null;
  const { id, title, text, kind, metadata, pages, line } = value;
  return {
    ...(typeof id === "string" || typeof id === "number" ? { id: String(id) } : {}),
    ...(typeof title === "string" ? { title } : {}),
    ...(KINDS.includes(kind as Kind) ? { kind: kind as Kind } : {}),
    ...(metadata === undefined ? {} : { metadata }),
    // The daemon checks what the entries of the list are.
    ...(Array.isArray(pages) ? { pages } : {}),
    ...(typeof line === "number" ? { line } : {}),
    text,
  };
}

function tryParse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
