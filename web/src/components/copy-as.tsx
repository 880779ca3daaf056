// The request as a program, shown and copied to the clipboard.
import { useState } from "preact/hooks";
import { type Language, LANGUAGES, snippet, type SnippetInput } from "../lib/snippets";

export function CopyAs(input: SnippetInput) {
  const [shown, setShown] = useState<Language | null>(null);
  const [message, setMessage] = useState("");
  const copy = async (language: Language) => {
    setShown(language);
    try {
      await navigator.clipboard.writeText(snippet(language, input));
      setMessage(`Copied as ${language}.`);
    } catch {
      // Browsers offer the clipboard to pages of this machine and to pages over TLS only.
      setMessage("The browser does not let this page copy. Select the text and copy it yourself.");
    }
  };
  return (
    <section class="copy-as" aria-label="Copy the request">
      <div class="row">
        <span class="muted">Copy as</span>
        {LANGUAGES.map((language) => (
          <button key={language} type="button" class="quiet" aria-expanded={shown === language} onClick={() => void copy(language)}>
            {language}
          </button>
        ))}
        {shown && (
          <button type="button" class="plain" onClick={() => setShown(null)}>
            Hide
          </button>
        )}
        <span class="small" role="status">
          {message}
        </span>
      </div>
      {shown && (
        <pre class="snippet" tabIndex={0} aria-label={`The request as ${shown}`}>
          {snippet(shown, input)}
        </pre>
      )}
    </section>
  );
}
