// Reads which tokens each head keeps in an export of keys and values (docs/kv-export.md, "The file").
import { parseSafetensors } from "./safetensors";

export interface KvExport {
  layers: number;
  heads: number;
  tokens: number;
  chunkIds: string[];
  /** `[token]`: index in `chunkIds`; -1 for a special token. */
  chunks: Int32Array;
  /** `[token * 2]`: start and end in the chunk's text, in bytes of UTF-8; -1 for special tokens and titles. */
  offsets: Int32Array;
  /** `[layer][head]`: the tokens whose keys the head keeps, ascending. */
  kept: Int32Array[][];
}

export function readKvExport(file: ArrayBuffer): KvExport {
  const { metadata, int32 } = parseSafetensors(file);
  if (metadata.format !== "thresher-kv/1") throw new Error(`The export has the format ${metadata.format}; this page reads thresher-kv/1.`);
  if (metadata.policy !== "heads") throw new Error(`The export has the policy ${metadata.policy}; this page shows the policy heads.`);
  const layers = Number(metadata.layers);
  const heads = Number(metadata.kv_heads);
  const chunks = int32("chunks");
  const kept = Array.from({ length: layers }, (_, layer) => {
    const counts = int32(`layers.${layer}.counts`);
    const rows = int32(`layers.${layer}.tokens`);
    let at = 0;
    return Array.from({ length: heads }, (_, head) => rows.subarray(at, (at += counts[head] ?? 0)));
  });
  return {
    layers,
    heads,
    tokens: chunks.length,
    chunkIds: JSON.parse(metadata.chunk_ids ?? "[]"),
    chunks,
    offsets: int32("offsets"),
    kept,
  };
}

/** `[token]`: the number of heads, over all layers, that keep the token's key. */
export function headsPerToken(kv: KvExport): Uint32Array {
  const counts = new Uint32Array(kv.tokens);
  for (const layer of kv.kept) for (const head of layer) for (const token of head) counts[token] = (counts[token] ?? 0) + 1;
  return counts;
}
