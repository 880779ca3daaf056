// Compress chunks for the language model, then find the chunks that its answer came from.
import { Client } from "thresher-client";

const chunks = [
  { id: "history", text: "Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat." },
  { id: "harbour", text: "The harbour has room for forty boats. Fish is sold there on Fridays." },
];

const client = new Client(); // THRESHER_URL, or http://127.0.0.1:8080
const found = await client.compress({
  query: "When was the lighthouse at Cape Orrin completed?",
  chunks,
  budget: { ratio: 0.5 },
});
const { parts } = await client.attribute({ answer: "The light was completed in 1874.", compress_id: found.id! });

console.log(found.context);
for (const { verdict, text, sources } of parts) {
  console.log(verdict, sources.filter(({ cited }) => cited).map(({ chunk }) => chunk), text);
}
