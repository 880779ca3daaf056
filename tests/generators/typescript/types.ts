/** The types of `clients/typescript`, which are written by hand, agree with those of the OpenAPI document. Only the compiler reads this file. */

import type { components } from "./schema.js";
import type * as client from "thresher-client";

type Schemas = components["schemas"];

/** What the daemon answers is what the client says that it answers. */
export const answers: [
  (answer: Schemas["CompressAnswer"]) => client.Compression,
  (answer: Schemas["AttributeAnswer"]) => client.Attribution,
  (answer: Schemas["Part"]) => client.Part,
  (answer: Schemas["Changes"]) => client.Changes,
  (answer: Schemas["Page"]) => client.ChunkPage,
  (answer: Schemas["Progress"]) => client.Progress,
  (answer: Schemas["SearchAnswer"]) => client.SearchResults,
  (answer: Schemas["Reranked"]) => Omit<client.Reranking, "related" | "answerable">,
  (answer: Schemas["Models"]) => { thresher: client.Model[] },
] = [same, same, same, same, same, same, same, same, same];

/** What the client sends is what the daemon takes. */
export const requests: [
  (request: Mutable<client.CompressRequest>) => Schemas["CompressBody"],
  (request: Mutable<client.AttributeRequest>) => Schemas["AttributeBody"],
  (request: Mutable<client.RegisterRequest>) => Schemas["RegisterBody"],
  (request: Mutable<client.RerankRequest>) => Schemas["RerankBody"],
  (request: Mutable<client.Budget>) => Schemas["Budget"],
] = [same, same, same, same, same];

/** Both list the same error codes. */
export const codes: [(code: Schemas["ErrorCode"]) => client.ErrorCode, (code: client.ErrorCode) => Schemas["ErrorCode"]] = [same, same];

/** The generated types have no `readonly`. */
type Mutable<T> = T extends readonly (infer E)[] ? Mutable<E>[] : T extends object ? { -readonly [K in keyof T]: Mutable<T[K]> } : T;

function same<T>(value: T): T {
  return value;
}
