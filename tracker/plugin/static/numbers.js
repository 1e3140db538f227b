// Numbers as people read them.

/** A ratio: 0, 9.87e-4, 0.0123. */
export function ratio(value) {
  if (value === 0 || !Number.isFinite(value)) return value === 0 ? '0' : String(value);
  return Math.abs(value) < 1e-2 || Math.abs(value) >= 1e4
    ? value.toExponential(2) : value.toPrecision(3);
}

/** A stddev as it was asked for: float32 noise in the last digits is dropped. */
export function plain(value) {
  return String(Number(value.toPrecision(4)));
}

/** A value of a family. */
export function of(family, value) {
  return family === 'share' ? `${(100 * value).toFixed(1)} %` : ratio(value);
}

/** A count or a step, with separators. */
export function count(value) {
  return value.toLocaleString('en');
}

/** A step short enough for an axis: 1500, 20k, 3M. */
export function short(step) {
  if (step >= 1e6) return `${Number((step / 1e6).toPrecision(3))}M`;
  return step >= 1e4 ? `${Number((step / 1e3).toPrecision(3))}k` : String(step);
}

/** Round steps between two, about so many. */
export function ticks(from, to, most, log) {
  if (!(to > from)) return [from];
  if (log) return powers(from, to, most);
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let k = Math.ceil(from / size); k * size <= to; k++) found.push(k * size);
  return found;
}

function powers(from, to, most) {
  const found = [];
  for (const n of [1, 2, 5]) {
    for (let power = 1; power <= to; power *= 10) if (n * power >= from && n * power <= to) found.push(n * power);
  }
  const ordered = found.sort((a, b) => a - b);
  return ordered.length <= most ? ordered
    : ordered.filter((step) => /^1/.test(step.toExponential()));
}
