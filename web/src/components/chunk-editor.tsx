// The chunks of the request: pasted, dropped, chosen as files, or edited as JSON.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Chunk, KINDS, type Kind } from "../lib/api";
import { type Division, parseChunks, readFile, readPasted, requestChunks } from "../lib/chunks";
import { count, plural } from "../lib/format";
import { changeInputs, type EditedChunk, inputs, nameOf, withKeys } from "../lib/inputs";
import { STORED_LENGTH_MAX, useStore } from "../lib/store";
import { Segmented } from "./segmented";

/** Files above this are not read: the daemon's limit for a whole request is 8 MiB. */
const FILE_BYTES_MAX = 8 << 20;

export function ChunkEditor() {
  const { chunks } = useStore(inputs);
  const overflow = useStore(inputs.overflow);
  const [mode, setMode] = useState<"list" | "json">("list");
  const [isDragged, setIsDragged] = useState(false);
  const [message, setMessage] = useState("");

  const add = (added: readonly Chunk[], query?: string) => {
    const current = inputs.get();
    changeInputs({ chunks: [...current.chunks, ...withKeys(added, current.chunks)], ...(query ? { query } : {}) });
    setMessage(added.length > 0 ? `Added ${plural(added.length, "chunk")}.` : "There is no text to add.");
  };
  const addFiles = async (files: readonly File[]) => {
    const refused: string[] = [];
    for (const file of files) {
      const read = file.size > FILE_BYTES_MAX ? null : readFile(file.name, await file.text());
      // A file with a NUL is an image, a PDF or another program's format.
      if (!read || read.chunks.some((chunk) => chunk.text.includes("\0"))) refused.push(file.name);
      else add(read.chunks, read.query);
    }
    if (refused.length > 0) setMessage(`Not added, because they are not text or are larger than 8 MiB: ${refused.join(", ")}.`);
  };

  return (
    <section
      class={`chunk-editor${isDragged ? " dragged" : ""}`}
      aria-labelledby="chunks-heading"
      onDragOver={(event) => {
        event.preventDefault();
        setIsDragged(true);
      }}
      onDragLeave={() => setIsDragged(false)}
      onDrop={(event) => {
        event.preventDefault();
        setIsDragged(false);
        void addFiles([...(event.dataTransfer?.files ?? [])]);
      }}
    >
      <div class="row spread">
        <h2 id="chunks-heading">
          Chunks {chunks.length > 0 && <span class="muted">{count(chunks.length)}</span>}
        </h2>
        <Segmented legend="Edit chunks as" options={[["list", "List"], ["json", "JSON"]]} value={mode} onChange={setMode} />
      </div>
      {mode === "json" ? (
        <JsonEditor chunks={chunks} />
      ) : (
        <>
          {chunks.length > 0 && (
            <ol class="chunk-list">
              {chunks.map((chunk, index) => (
                <ChunkRow key={chunk.key} chunk={chunk} index={index} />
              ))}
            </ol>
          )}
          <AddChunks onAdd={add} onFiles={addFiles} />
        </>
      )}
      <p class="small" role="status">
        {message}
      </p>
      {overflow && (
        <p class="small warn">
          Your input is larger than {count(STORED_LENGTH_MAX / 1e6)} MB. The page does not keep it over a reload.
        </p>
      )}
    </section>
  );
}

function ChunkRow({ chunk, index }: { chunk: EditedChunk; index: number }) {
  const [isOpen, setIsOpen] = useState(false);
  const name = nameOf(chunk, index);
  const change = (changed: Partial<Chunk>) => {
    const { chunks } = inputs.get();
    changeInputs({ chunks: chunks.map((other) => (other.key === chunk.key ? { ...other, ...changed } : other)) });
  };
  return (
    <li>
      <div class="chunk-row">
        <button type="button" class="plain grow" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
          <span class="number">{index + 1}</span>
          <span class="clip">
            {chunk.title || chunk.id ? <b>{name}</b> : null} <span class="muted">{chunk.text.slice(0, 90)}</span>
          </span>
        </button>
        <select
          aria-label={`Kind of ${name}`}
          value={chunk.kind ?? "auto"}
          onChange={(event) => change({ kind: event.currentTarget.value as Kind })}
        >
          {KINDS.map((kind) => (
            <option key={kind} value={kind}>
              {kind}
            </option>
          ))}
        </select>
        <button
          type="button"
          class="plain"
          aria-label={`Remove ${name}`}
          onClick={() => changeInputs({ chunks: inputs.get().chunks.filter((other) => other.key !== chunk.key) })}
        >
          ✕
        </button>
      </div>
      {isOpen && (
        <div class="chunk-fields">
          <label>
            Title
            <input value={chunk.title ?? ""} onInput={(event) => change({ title: event.currentTarget.value })} />
          </label>
          <label>
            Text
            <textarea rows={6} value={chunk.text} onInput={(event) => change({ text: event.currentTarget.value })} />
          </label>
        </div>
      )}
    </li>
  );
}

interface AddProps {
  onAdd: (chunks: readonly Chunk[], query?: string) => void;
  onFiles: (files: readonly File[]) => Promise<void>;
}

function AddChunks({ onAdd, onFiles }: AddProps) {
  const [text, setText] = useState("");
  const [division, setDivision] = useState<Division>("paragraphs");
  const files = useRef<HTMLInputElement>(null);
  return (
    <div class="add-chunks">
      <label>
        <span class="sr">Text of new chunks</span>
        <textarea
          rows={3}
          placeholder="Paste text, or drop files here. A JSON list of chunks, JSON Lines and a whole request work, too."
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <button
          type="button"
          disabled={text.trim() === ""}
          onClick={() => {
            const read = readPasted(text, division);
            onAdd(read.chunks, read.query);
            setText("");
          }}
        >
          Add
        </button>
        <label class="check">
          <input
            type="checkbox"
            checked={division === "paragraphs"}
            onChange={(event) => setDivision(event.currentTarget.checked ? "paragraphs" : "whole")}
          />
          Blank lines divide chunks
        </label>
        <button type="button" class="quiet" onClick={() => files.current?.click()}>
          Choose files…
        </button>
        <input
          ref={files}
          type="file"
          multiple
          hidden
          aria-label="Files with chunks"
          onChange={(event) => {
            const input = event.currentTarget;
            // Emptied afterwards, so that the same file can be chosen again.
            void onFiles([...(input.files ?? [])]).then(() => (input.value = ""));
          }}
        />
      </div>
    </div>
  );
}

function JsonEditor({ chunks }: { chunks: readonly EditedChunk[] }) {
  const [text, setText] = useState(() => JSON.stringify(requestChunks(chunks), null, 2));
  const [error, setError] = useState("");
  const written = useRef(chunks);
  // Changes from elsewhere, such as an example, replace the text; the editor's own do not.
  useEffect(() => {
    if (written.current === chunks) return;
    written.current = chunks;
    setText(JSON.stringify(requestChunks(chunks), null, 2));
    setError("");
  }, [chunks]);
  const edit = (json: string) => {
    setText(json);
    try {
      const parsed = withKeys(parseChunks(json));
      written.current = parsed;
      changeInputs({ chunks: parsed });
      setError("");
    } catch (cause) {
      setError(cause instanceof Error ? cause.message : String(cause));
    }
  };
  return (
    <label>
      <span class="sr">Chunks as JSON</span>
      <textarea
        class="json"
        rows={14}
        spellcheck={false}
        value={text}
        aria-invalid={error !== ""}
        aria-describedby="json-error"
        onInput={(event) => edit(event.currentTarget.value)}
      />
      <span id="json-error" class="small warn" role="status">
        {error && `${error} The last valid chunks stay in use.`}
      </span>
    </label>
  );
}
