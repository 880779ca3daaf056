// Tell errors apart.
import { ApiError, Client, OverloadedError, ThresherError } from "thresher-client";

const client = new Client({ timeoutMs: 5_000 });
try {
  await client.compress({ query: "When?", chunks: ["In 1874."], budget: { tokens: 0 } });
} catch (error) {
  if (error instanceof OverloadedError) console.log("busy; try again in", error.retryAfterS, "s");
  else if (error instanceof ApiError) console.log(error.status, error.code, error.param, error.requestId);
  else if (error instanceof ThresherError) console.log(error.code); // no answer: connection_failed, timed_out
  else throw error;
}
