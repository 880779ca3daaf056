// The words of the question. Each lights up the text that it matched.
import { moveFocus } from "./roving";
import type { QuestionWord } from "../lib/explanation";

interface Props {
  query: string;
  words: readonly QuestionWord[];
  lit: ReadonlySet<number>;
  pinned: number | null;
  onHover: (word: number | null) => void;
  onPin: (word: number) => void;
}

export function QuestionWords({ query, words, lit, pinned, onHover, onPin }: Props) {
  const pieces = [];
  let at = 0;
  words.forEach((word, index) => {
    pieces.push(query.slice(at, word.start));
    pieces.push(
      <button
        type="button"
        class={`word match${lit.has(index) ? " lit" : ""}`}
        data-rove
        data-question={index}
        tabIndex={index === 0 ? 0 : -1}
        aria-pressed={pinned === index}
        onPointerEnter={() => onHover(index)}
        onFocus={() => onHover(index)}
        onBlur={() => onHover(null)}
        onClick={() => onPin(index)}
      >
        {query.slice(word.start, word.end)}
      </button>,
    );
    at = word.end;
  });
  pieces.push(query.slice(at));
  return (
    <p class="question" role="group" aria-label="Words of the question" onKeyDown={moveFocus} onPointerLeave={() => onHover(null)}>
      {pieces}
    </p>
  );
}
