// The question, the chunks and the options that the views share. They survive a reload.
import type { Budget, Chunk, CompressRequest } from "./api";
import { requestChunks } from "./chunks";
import { createSessionStore } from "./store";

/** A chunk in the editor. `key` tells it from others while chunks are added and removed. */
export interface EditedChunk extends Chunk {
  key: number;
}

export interface Inputs {
  query: string;
  chunks: EditedChunk[];
  budget: Budget;
  granularity: string;
  order: string;
  format: string;
  omissions: string;
  tokenizer: string;
}

/** The values of each option; the first one is the daemon's default. */
export const OPTIONS = {
  granularity: ["sentence", "chunk", "word"],
  order: ["input", "relevance"],
  format: ["numbered", "plain", "xml"],
  omissions: ["auto", "none", "ellipsis", "range"],
  tokenizer: ["o200k_base", "cl100k_base", "model"],
} as const;
/** The budgets of coverage that the page offers. */
export const COVERAGES = [0.8, 0.95] as const;
export type OptionName = keyof typeof OPTIONS;
export const OPTION_NAMES = Object.keys(OPTIONS) as OptionName[];

export const inputs = createSessionStore<Inputs>("inputs", {
  query: "",
  chunks: [],
  budget: {},
  granularity: "sentence",
  order: "input",
  format: "numbered",
  omissions: "auto",
  tokenizer: "o200k_base",
});

export function changeInputs(changed: Partial<Inputs>): void {
  inputs.set({ ...inputs.get(), ...changed });
}

/** Gives chunks keys that no chunk of the editor has. */
export function withKeys(chunks: readonly Chunk[], others: readonly EditedChunk[] = []): EditedChunk[] {
  const first = others.reduce((max, chunk) => Math.max(max, chunk.key), 0) + 1;
  return chunks.map((chunk, index) => ({ ...chunk, key: first + index }));
}

export function isComplete({ query, chunks }: Pick<Inputs, "query" | "chunks">): boolean {
  return query.trim() !== "" && chunks.length > 0;
}

/** The request for these inputs. Options with their default value are left out. */
export function requestOf(current: Inputs): CompressRequest {
  const options = OPTION_NAMES.filter((name) => current[name] !== OPTIONS[name][0]).map((name) => [name, current[name]]);
  return {
    query: current.query,
    chunks: requestChunks(current.chunks),
    budget: current.budget,
    ...Object.fromEntries(options),
  };
}

/** The name by which the page shows a chunk. */
export function nameOf(chunk: Chunk, index: number): string {
  return chunk.title || String(chunk.id ?? "") || `Chunk ${index + 1}`;
}
