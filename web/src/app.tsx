// The shell of the page: navigation, theme, API key, and the view that the address names.
import { useEffect, useState } from "preact/hooks";
import { apiKey, forgetApiKey, keyRefused, setApiKey } from "./lib/access";
import { type Daemon, otherListener, useDaemon, useDaemonUpdates } from "./lib/daemon";
import { useRoute } from "./lib/hooks";
import { useStore } from "./lib/store";
import { nextTheme, theme, THEME_NAMES } from "./lib/theme";
import { AttributeView } from "./views/attribute";
import { CompressView } from "./views/compress";
import { KvView } from "./views/kv";
import { OperateView } from "./views/operate";

const VIEWS = [
  { route: "compress", name: "Compress", view: CompressView, needsApi: true },
  { route: "attribute", name: "Attribute", view: AttributeView, needsApi: true },
  { route: "keys", name: "Keys and values", view: KvView, needsApi: true },
  { route: "operate", name: "Operate", view: OperateView, needsApi: false },
] as const;

export function App() {
  useDaemonUpdates();
  const daemon = useDaemon();
  const route = useRoute();
  // On the admin listener only Operate works, so the page opens with it.
  const fallback = daemon.state === "admin" ? VIEWS[3] : VIEWS[0];
  const current = VIEWS.find((view) => view.route === route) ?? fallback;
  const View = current.view;
  useEffect(() => {
    document.title = `${current.name} – Thresher`;
  }, [current]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          // The address holds the view, so the link must not change it.
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <span class="brand">Thresher</span>
        <nav aria-label="Views">
          {VIEWS.map((view) => (
            <a key={view.route} href={`#/${view.route}`} aria-current={view === current ? "page" : undefined}>
              {view.name}
            </a>
          ))}
        </nav>
        <DaemonBadge daemon={daemon} />
        <ThemeButton />
      </header>
      <KeyPanel />
      <main id="main" tabIndex={-1}>
        <h1 class="sr">{current.name}</h1>
        {current.needsApi && daemon.state === "admin" ? <AdminNotice route={current.route} /> : <View />}
      </main>
    </>
  );
}

function DaemonBadge({ daemon }: { daemon: Daemon }) {
  const key = useStore(apiKey);
  const model = daemon.state === "api" ? daemon.models[0] : undefined;
  return (
    <div class="badge" role="status">
      {model && (
        <span title={`Model ${model.id}, fingerprint ${model.fingerprint}`}>
          {model.id} · {model.device}
        </span>
      )}
      {daemon.state === "admin" && <span>admin listener</span>}
      {daemon.state === "api" && daemon.failure && daemon.failure.status !== 401 && <span class="warn">{daemon.failure.code}</span>}
      {key && (
        <button type="button" class="plain" onClick={forgetApiKey}>
          Forget the key
        </button>
      )}
    </div>
  );
}

function ThemeButton() {
  const current = useStore(theme);
  return (
    <button type="button" class="plain theme" onClick={nextTheme} aria-label={`Colours: ${THEME_NAMES[current]}. Change`}>
      <span aria-hidden="true">{{ auto: "◐", light: "○", dark: "●" }[current]}</span> {THEME_NAMES[current]}
    </button>
  );
}

/** Asks for an API key when the daemon has refused a request without one, or with another one. */
function KeyPanel() {
  const refused = useStore(keyRefused);
  const [typed, setTyped] = useState("");
  if (!refused) return null;
  return (
    <form
      class="notice key-panel"
      aria-label="API key"
      onSubmit={(event) => {
        event.preventDefault();
        const key = typed.trim();
        if (!key) return;
        setTyped("");
        setApiKey(key);
      }}
    >
      <p>
        <b>{refused === "key_unknown" ? "The daemon does not know this API key." : "The daemon requires an API key."}</b>{" "}
        <code class="code">{refused}</code> The page keeps it in this tab only and sends it to this daemon only.
      </p>
      <div class="row">
        <label class="grow">
          <span class="sr">API key</span>
          <input type="password" autocomplete="off" spellcheck={false} placeholder="thr_…" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
        <button type="submit">Use this key</button>
      </div>
    </form>
  );
}

function AdminNotice({ route }: { route: string }) {
  const address = `${otherListener(8080)}#/${route}`;
  return (
    <div class="notice" data-admin>
      <p>
        <b>This page was opened on the daemon's admin listener</b>, which has no API.
      </p>
      <p>
        Open this view on the public listener. Its address is the setting <code>http.listen</code>; by default it is <a href={address}>{address}</a>.
      </p>
    </div>
  );
}
