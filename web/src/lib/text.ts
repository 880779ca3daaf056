// Words and segments of a text: pure functions over ranges in UTF-16 code units.
import type { Range } from "./api";

/** A word of a text, and the indexes of the model's tokens that it is made of. */
export interface Word extends Range {
  tokens: number[];
}

// Scripts that write no spaces: each token stays a word of its own.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;
const WORD = /[\p{L}\p{N}\p{M}_]/u;

/** Joins the model's tokens, which may be pieces of words, to words. Tokens that are only punctuation stay alone. */
export function wordsOf(text: string, tokens: readonly Range[]): Word[] {
  const words: Word[] = [];
  tokens.forEach((token, index) => {
    const { start, end } = trimStart(text, token);
    if (end <= start) return;
    const last = words.at(-1);
    if (last && last.end === start && continues(text, start)) {
      last.end = end;
      last.tokens.push(index);
    } else {
      words.push({ start, end, tokens: [index] });
    }
  });
  return words;
}

/** The range without space at its start, which tokens of decoders have. */
export function trimStart(text: string, { start, end }: Range): Range {
  const space = /^\s*/.exec(text.slice(start, end))?.[0].length ?? 0;
  return { start: start + space, end };
}

function continues(text: string, at: number): boolean {
  const before = String.fromCodePoint(text.codePointAt(startOfCharacter(text, at - 1)) ?? 0);
  const after = String.fromCodePoint(text.codePointAt(at) ?? 0);
  return WORD.test(before) && WORD.test(after) && !UNSPACED.test(before) && !UNSPACED.test(after);
}

function startOfCharacter(text: string, at: number): number {
  const unit = text.charCodeAt(at);
  return unit >= 0xdc00 && unit <= 0xdfff ? at - 1 : at;
}

/** Whether a range has a letter or a digit. */
export function hasLetters(text: string, range: Range): boolean {
  return /[\p{L}\p{N}]/u.test(text.slice(range.start, range.end));
}

/** The parts of `ranges` that are in none of `minus`. Both are ascending and without overlap, and so is the result. */
export function subtract(ranges: readonly Range[], minus: readonly Range[]): Range[] {
  const left: Range[] = [];
  for (const range of ranges) {
    let { start } = range;
    for (const hole of minus) {
      if (hole.end <= start || hole.start >= range.end) continue;
      if (hole.start > start) left.push({ start, end: hole.start });
      start = Math.max(start, hole.end);
    }
    if (start < range.end) left.push({ start, end: range.end });
  }
  return left;
}

/** What happened to a segment of a chunk: it is in the context; it would be in a larger one; it is not; or it is only space between others. */
export type Fate = "kept" | "near" | "cut" | "space";

export interface ScoredRange extends Range {
  score: number | null;
}

export interface Segment extends ScoredRange {
  fate: Fate;
}

/** Divides a text into segments by its kept and its near-miss ranges. The segments cover the whole text, in order. */
export function segmentsOf(text: string, kept: readonly ScoredRange[], near: readonly Range[]): Segment[] {
  const marked: Segment[] = [
    ...kept.map(({ start, end, score }) => ({ start, end, score, fate: "kept" as const })),
    ...near.map(({ start, end }) => ({ start, end, score: null, fate: "near" as const })),
  ].sort((a, b) => a.start - b.start);
  const segments: Segment[] = [];
  const gap = (start: number, end: number) => {
    if (start >= end) return;
    const fate = text.slice(start, end).trim() === "" ? "space" : "cut";
    segments.push({ start, end, fate, score: null });
  };
  let at = 0;
  for (const segment of marked) {
    gap(at, segment.start);
    const space = text.slice(segment.start, segment.end).trim() === "";
    segments.push(space ? { ...segment, fate: "space" } : segment);
    at = segment.end;
  }
  gap(at, text.length);
  return segments;
}

/** A piece of a segment: one word, or the text between two words (`word` is null). */
export interface Piece extends Range {
  word: number | null;
}

/** Cuts a segment at the borders of `words`, which are ascending. Only words for which `isMarked` is true become pieces of their own. */
export function piecesOf(segment: Range, words: readonly Range[], isMarked: (word: number) => boolean): Piece[] {
  const pieces: Piece[] = [];
  let at = segment.start;
  for (let index = firstEndingAfter(words, segment.start); index < words.length; index++) {
    const word = words[index]!;
    if (word.start >= segment.end) break;
    if (!isMarked(index)) continue;
    const start = Math.max(word.start, segment.start);
    const end = Math.min(word.end, segment.end);
    if (start > at) pieces.push({ start: at, end: start, word: null });
    pieces.push({ start, end, word: index });
    at = end;
  }
  if (at < segment.end) pieces.push({ start: at, end: segment.end, word: null });
  return pieces;
}

/** The index of the first range that ends after `at`. */
export function firstEndingAfter(ranges: readonly Range[], at: number): number {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle]!.end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The number of UTF-16 code units of a text up to each of the byte offsets `bytes` of its UTF-8 form. */
export function utf16Offsets(text: string, bytes: readonly number[]): number[] {
  const order = bytes.map((_, index) => index).sort((a, b) => bytes[a]! - bytes[b]!);
  const units = new Array<number>(bytes.length).fill(0);
  let byte = 0;
  let unit = 0;
  for (const index of order) {
    while (byte < bytes[index]! && unit < text.length) {
      const point = text.codePointAt(unit)!;
      byte += point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
      unit += point < 0x10000 ? 1 : 2;
    }
    units[index] = unit;
  }
  return units;
}
