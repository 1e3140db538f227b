// What the server knows: runs, the layers of one, and series of numbers.

const MOST_TAGS = 1000; // of one request

/** Names of the runs with ratios, oldest first. */
export async function runs() {
  return (await ask('../runs')).runs;
}

/** What a run has; see layers.py. */
export function layers(run) {
  return ask(`../layers?run=${encodeURIComponent(run)}`);
}

/**
 * Series of a run.
 *
 * @return of each tag {steps: Array, values: Float32Array}, or null where it has no points. Series
 *     with the same steps share one array.
 */
export async function series(run, tags, points) {
  const found = [];
  for (let i = 0; i < tags.length; i += MOST_TAGS) {
    const body = JSON.stringify({run, tags: tags.slice(i, i + MOST_TAGS), points});
    const answer = await ask('../series', {method: 'POST', body});
    found.push(...answer.series.map((one) => one && unpacked(answer.steps[one[0]], one[1])));
  }
  return found;
}

async function ask(path, options) {
  const answer = await fetch(new URL(path, import.meta.url), options);
  if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.text()).slice(0, 200)}`);
  return answer.json();
}

function unpacked(steps, packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer); // little-endian on every machine
  const values = Float32Array.from(steps, (_, i) => view.getFloat32(4 * i, true));
  return {steps, values};
}
