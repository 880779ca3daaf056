/** Decides whether a request is sent again, and when. */

import { ApiError, ConnectionFailedError, OverloadedError, UnavailableError } from "./errors.js";

/** Limits of retries. No wait begins that would exceed the time of the call. */
export interface Retries {
  /** Retries after lost connections, and after status 429 or 503 without `Retry-After`. 0 turns off all retries. Default: 3. */
  countMax: number;
  /** Milliseconds before the first retry, doubled for each further one. Half of each wait is random. Default: 100. */
  waitMsMin: number;
  /** The longest wait in milliseconds. A `Retry-After` header can ask for a longer one. Default: 5,000. */
  waitMsMax: number;
}

export const RETRIES_DEFAULT: Retries = { countMax: 3, waitMsMin: 100, waitMsMax: 5_000 };

/** Counts the failures of one call. */
export class RetryState {
  private failures = 0;
  private refusals = 0;

  constructor(private readonly retries: Retries) {}

  /**
   * Milliseconds to wait before the next attempt, or null if the error is final. A refusal with `Retry-After` is retried as often as the
   * time of the call allows, since the header says when the daemon expects to have finished its present work.
   */
  waitMs(error: unknown): number | null {
    if (!isRetryable(error) || this.retries.countMax === 0) return null;
    const after = error instanceof ApiError ? error.retryAfterS : null;
    if (after === null) this.failures += 1;
    else this.refusals += 1;
    if (this.failures > this.retries.countMax) return null;
    const retry = this.failures + this.refusals;
    const doubled = Math.min(this.retries.waitMsMax, this.retries.waitMsMin * 2 ** Math.min(retry - 1, 60));
    if (after === null) return doubled * (0.5 + Math.random() / 2);
    return after * 1000 + doubled * (Math.random() / 2);
  }
}

function isRetryable(error: unknown): boolean {
  // Timeouts are not retried: that would double the work of a daemon that is overloaded.
  return error instanceof OverloadedError || error instanceof UnavailableError || error instanceof ConnectionFailedError;
}
