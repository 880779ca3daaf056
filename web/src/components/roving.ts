// Roving focus: a group of many controls is one stop of the Tab key, and arrow keys move within it.

/** Handler of `keydown` on the group. Its controls have the attribute `data-rove`; the first one is rendered with tabindex 0. */
export function moveFocus(event: KeyboardEvent): void {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  const group = event.currentTarget as HTMLElement;
  const controls = [...group.querySelectorAll<HTMLElement>("[data-rove]")];
  const current = controls.indexOf(document.activeElement as HTMLElement);
  const next = controls[Math.min(controls.length - 1, Math.max(0, current + step))];
  if (current < 0 || !next) return;
  event.preventDefault();
  for (const control of controls) control.tabIndex = control === next ? 0 : -1;
  next.focus();
}
