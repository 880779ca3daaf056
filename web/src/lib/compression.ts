// The newest compression of the Compress view, from which the Attribute view can go on.
import type { CompressAnswer, CompressRequest } from "./api";
import type { Inputs } from "./inputs";
import { createStore } from "./store";

export interface Compression {
  answer: CompressAnswer;
  request: CompressRequest;
  inputs: Inputs;
}

export const lastCompression = createStore<Compression | null>(null);
