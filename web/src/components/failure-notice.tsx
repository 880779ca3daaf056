// An error in the place where its result would be.
import type { Failure } from "../lib/api";

interface Props {
  failure: Failure;
  onRetry: () => void;
  /** Whether an earlier result is still shown below. */
  hasOldResult?: boolean;
}

export function FailureNotice({ failure, onRetry, hasOldResult = false }: Props) {
  return (
    <div class="notice failure" role="alert">
      <p>
        <code class="code">{failure.code}</code> {failure.message}
      </p>
      {failure.param && (
        <p class="small">
          In the request: <code>{failure.param}</code>
        </p>
      )}
      {failure.retryAfterS !== null && <p class="small">The daemon expects to be free in {failure.retryAfterS} s.</p>}
      <p class="row">
        <button type="button" onClick={onRetry}>
          Try again
        </button>
        {hasOldResult && <span class="small">The result below is the earlier one.</span>}
      </p>
    </div>
  );
}
