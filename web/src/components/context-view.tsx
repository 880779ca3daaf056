// The compressed context, in which every piece leads to the chunk that it came from.
import type { CompressAnswer } from "../lib/api";
import { placeOf } from "../lib/verdict";

interface Props {
  answer: CompressAnswer;
  isCode: boolean;
  /** Shows the chunk with this id. */
  onChunk: (id: string) => void;
}

export function ContextView({ answer: { context, citations }, isCode, onChunk }: Props) {
  if (context === "") return null;
  const pieces = [];
  let at = 0;
  for (const citation of [...citations].sort((a, b) => a.output.start - b.output.start)) {
    const { chunk, marker, output } = citation;
    const place = placeOf(citation);
    if (output.start > at) pieces.push(<Between text={context.slice(at, output.start)} onMarker={() => onChunk(chunk)} marker={marker} />);
    pieces.push(
      <span class="cited" data-chunk={chunk} title={`From chunk ${chunk}${place && `, ${place}`}`}>
        {context.slice(output.start, output.end)}
      </span>,
    );
    at = output.end;
  }
  if (at < context.length) pieces.push(<span class="muted">{context.slice(at)}</span>);
  return <div class={`context${isCode ? " mono" : ""}`}>{pieces}</div>;
}

/** Text that the daemon wrote between two pieces: markers, titles, marks of omissions, spaces. */
function Between({ text, marker, onMarker }: { text: string; marker: number; onMarker: () => void }) {
  const written = `[${marker}]`;
  const at = text.lastIndexOf(written);
  if (at < 0) return <span class="muted">{text}</span>;
  // The title, if there is one, is the rest of the marker's line; a mark of an omission may follow it.
  const [, title, rest] = /^([^\n]*)(.*)$/s.exec(text.slice(at + written.length)) ?? [];
  return (
    <>
      <span class="muted">{text.slice(0, at)}</span>
      <button type="button" class="marker" aria-label={`Citation ${marker}: show the chunk`} onClick={onMarker}>
        {written}
      </button>
      <span class="title-line">{title}</span>
      <span class="muted">{rest}</span>
    </>
  );
}
