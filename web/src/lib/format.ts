// Numbers in words and units, in one place, so that all views write them alike.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return whole.format(value);
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function percent(share: number): string {
  const value = share * 100;
  return `${value > 0 && value < 1 ? "<1" : Math.round(value)} %`;
}

export function milliseconds(ms: number): string {
  if (ms >= 1000) return `${significant(ms / 1000)} s`;
  return ms > 0 && ms < 0.01 ? "<0.01 ms" : `${significant(ms)} ms`;
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 1000 && unit < units.length - 1) {
    scaled /= 1000;
    unit++;
  }
  return `${significant(scaled)} ${units[unit]}`;
}

/** A number with about three digits. */
export function significant(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** A score. Small ones keep two digits that are not zero, so that they can be compared. */
export function score(value: number): string {
  const size = Math.abs(value);
  return size === 0 ? "0" : size >= 0.01 ? value.toFixed(2) : value.toPrecision(2);
}
