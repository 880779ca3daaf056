// Attribute an answer while it streams.
import { Client } from "thresher-client";

const chunks = ["Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat."];

// Replace with the stream of your language model.
async function* llm() {
  yield* ["The light was ", "completed in 1874. ", "It was painted green."];
}

const client = new Client();
const stream = client.attributeStream(llm(), { chunks }, { signal: AbortSignal.timeout(30_000) });
for await (const part of stream) {
  console.log(part.verdict, part.text.trim());
}
