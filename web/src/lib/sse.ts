// Parser of server-sent events (WHATWG HTML, section 9.2.6): the fields `event` and `data`.

export interface SseEvent {
  type: string;
  data: string;
}

/** `push` takes the next piece of the stream, cut anywhere, and returns the events that it completes. */
export function createSseParser(): { push(text: string): SseEvent[] } {
  let rest = "";
  let type = "";
  let data: string[] = [];
  return {
    push(text) {
      const events: SseEvent[] = [];
      rest += text;
      for (;;) {
        const end = /\r\n|\n|\r(?!$)/.exec(rest);
        if (!end) break;
        const line = rest.slice(0, end.index);
        rest = rest.slice(end.index + end[0].length);
        if (line === "") {
          if (data.length > 0) events.push({ type: type || "message", data: data.join("\n") });
          type = "";
          data = [];
          continue;
        }
        const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
        if (field === "event") type = value ?? "";
        if (field === "data") data.push(value ?? "");
      }
      return events;
    },
  };
}
