// What `explain` of a compression says about words: how much each word of a chunk matters, and which text each word of the question matched.
import type { Explanation, Range } from "./api";
import { firstEndingAfter, hasLetters, type Word, wordsOf } from "./text";

/** A match in a chunk counts only if its RC is at least this share of the word's best match: every word matches something everywhere. */
const MATCH_SHARE_MIN = 0.25;

export interface QuestionWord extends Range {
  /** One match per chunk, in the order of the request; null if the word matched the chunk too weakly. */
  matches: (Match | null)[];
  /** The index of the chunk with the best match, or null if no chunk matches at all. */
  best: number | null;
}

/** The text of one chunk that a word of the question matched. */
export interface Match {
  rc: number;
  /** The index of the matched word in the chunk, or null if the word matched the chunk's title. */
  word: number | null;
}

export interface ExplainedChunk {
  words: Word[];
  /** The RC of each word: the largest of its tokens; 0 for punctuation. */
  rc: number[];
  /** For each word, the indexes of the words of the question that matched it. */
  matchedBy: Map<number, number[]>;
}

export interface ExplainedWords {
  question: QuestionWord[];
  chunks: ExplainedChunk[];
  /** The largest RC of a word, or 0. */
  rcMax: number;
}

export function explainWords(query: string, texts: readonly string[], explain: Explanation): ExplainedWords {
  const chunks = explain.chunks.map((chunk, index): ExplainedChunk => {
    const words = wordsOf(texts[index] ?? "", chunk.tokens);
    const text = texts[index] ?? "";
    const rc = words.map((word) => (hasLetters(text, word) ? Math.max(...word.tokens.map((token) => chunk.tokens[token]!.rc)) : 0));
    return { words, rc, matchedBy: new Map() };
  });
  const question = wordsOf(query, explain.query)
    // A question mark matches something, too, but nobody asks what.
    .filter((word) => hasLetters(query, word))
    .map((word, index): QuestionWord => {
      // A word of several tokens matched what its strongest token matched.
      const strongest = explain.chunks.map((chunk) => word.tokens.map((at) => chunk.query[at]!).reduce((best, next) => (next.rc > best.rc ? next : best)));
      const rcBest = Math.max(0, ...strongest.map(({ rc }) => rc));
      const matches = strongest.map(({ rc, source }, at): Match | null => {
        if (rc <= 0 || rc < MATCH_SHARE_MIN * rcBest) return null;
        const found = source && wordAt(chunks[at]!.words, source);
        if (found !== null) {
          const { matchedBy } = chunks[at]!;
          matchedBy.set(found, [...(matchedBy.get(found) ?? []), index]);
        }
        return { rc, word: found };
      });
      const best = matches.findIndex((match) => match?.rc === rcBest);
      return { start: word.start, end: word.end, matches, best: best < 0 ? null : best };
    });
  const rcMax = Math.max(0, ...chunks.map((chunk) => chunk.rc.reduce((max, rc) => Math.max(max, rc), 0)));
  return { question, chunks, rcMax };
}

function wordAt(words: readonly Word[], range: Range): number | null {
  const index = firstEndingAfter(words, range.start);
  return words[index] && words[index].start <= range.start ? index : null;
}

/** The level of an RC from 0 (no mark) to 4, relative to the largest. */
export function heatLevel(rc: number, max: number): number {
  return max <= 0 || rc <= 0 ? 0 : Math.min(4, Math.floor((rc / max) * 5));
}

/** Stands for the title of a chunk among the indexes of its words. */
export const TITLE = -1;

/** The words of one chunk that are lit, or its title, each as the best match of all chunks or as another one. */
export type LitWords = ReadonlyMap<number, "best" | "other">;

/** For each chunk with a match: the words that light up for a word of the question. */
export function litWords(explained: ExplainedWords, question: number): Map<number, LitWords> {
  const word = explained.question[question];
  const lit = new Map<number, LitWords>();
  word?.matches.forEach((match, chunk) => {
    if (match) lit.set(chunk, new Map([[match.word ?? TITLE, chunk === word.best ? "best" : "other"]]));
  });
  return lit;
}
