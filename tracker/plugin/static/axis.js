// The step axis: where columns begin and end.

/** Positions of the edges of columns, n + 1 numbers from 0 to width; columns meet half way. */
export function edges(steps, range, width, log) {
  const place = placer(range, width, log);
  const found = new Float64Array(steps.length + 1);
  for (let i = 1; i < steps.length; i++) found[i] = place(middle(steps[i - 1], steps[i], log));
  if (steps.length) {
    found[0] = steps[0] <= range[0] ? 0 : place(steps[0]);
    const last = steps[steps.length - 1];
    found[steps.length] = last >= range[1] ? width : place(last);
    // One step alone, or the last one of a shorter run, has a width of its own.
    if (found[steps.length] - found[steps.length - 1] < 1) {
      found[steps.length] = Math.min(width, found[steps.length - 1] + 1);
    }
  }
  return found;
}

/** A function from a step to its position. */
export function placer([from, to], width, log) {
  const [low, high] = [scaled(from, log), scaled(to, log)];
  return (step) => high > low ? (scaled(step, log) - low) / (high - low) * width : width / 2;
}

/** Column at a position, by edges. */
export function columnAt(found, x) {
  let [low, high] = [0, found.length - 2];
  while (low < high) {
    const half = (low + high + 1) >> 1;
    if (found[half] <= x) low = half;
    else high = half - 1;
  }
  return low;
}

function scaled(step, log) {
  return log ? Math.log10(Math.max(step, 0.5)) : step;
}

function middle(a, b, log) {
  return log ? Math.sqrt(Math.max(a, 0.5) * Math.max(b, 0.5)) : (a + b) / 2;
}
