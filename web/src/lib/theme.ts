// The colours of the page: those of the system, or light or dark if a person has chosen.
import { createStore } from "./store";

const NAME = "thresher.theme";

export const THEME_NAMES = { auto: "System", light: "Light", dark: "Dark" } as const;
export type Theme = keyof typeof THEME_NAMES;

export const theme = createStore<Theme>(read());
apply(theme.get());
theme.subscribe(() => apply(theme.get()));

export function nextTheme(): void {
  const order: Theme[] = ["auto", "light", "dark"];
  const next = order[(order.indexOf(theme.get()) + 1) % order.length] ?? "auto";
  try {
    localStorage.setItem(NAME, next);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  theme.set(next);
}

function apply(chosen: Theme): void {
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

function read(): Theme {
  try {
    const stored = localStorage.getItem(NAME);
    return stored === "light" || stored === "dark" ? stored : "auto";
  } catch {
    return "auto";
  }
}
