// Loads a run in pieces small enough that the page and the server stay usable.

import * as backend from './backend.js';
import {Run} from './run.js';

export const MOST_POINTS = 20000; // of one series: more than any screen shows
const FIRST_LOOK = 200; // steps
const NUMBERS = 100000; // of one request

/**
 * Loads all of a run.
 *
 * @param name the run.
 * @param wanted the family that is shown, loaded before the others.
 * @param arrived called with the run after each piece, unless it is a reload.
 * @param current says whether the answer is still wanted.
 * @return the run, or null if it is not wanted any more.
 */
export async function load(name, wanted, arrived, current, reload = false) {
  const run = new Run(name, await backend.layers(name), MOST_POINTS);
  const show = () => !reload && current() && arrived(run);
  await beside(run);
  const rows = run.layers.length;
  const families = order(run, wanted);
  const shown = families.slice(0, shownFirst(wanted).length);
  if (!reload && rows * Math.min(run.kept, 1000) > NUMBERS) {
    for (const family of shown) {
      if (!current()) return null;
      run.add(family, 0, await backend.series(name, tags(run, family, 0, rows), FIRST_LOOK), false);
      show();
    }
  }
  for (const family of families) {
    let size = NUMBERS / 1000;
    for (let row = 0; row < rows; row += size) {
      if (!current()) return null;
      if (row) size = nextSize(run);
      const found = await backend.series(name, tags(run, family, row, row + size), MOST_POINTS);
      run.add(family, row, found, true);
      run.pieces = (run.pieces ?? 0) + 1;
      run.longest = Math.max(run.longest ?? 1, ...found.map((one) => one?.steps.length ?? 1));
      show();
    }
  }
  run.complete = true;
  return current() ? run : null;
}

function nextSize(run) {
  return Math.max(1, Math.min(400, Math.floor(NUMBERS / run.longest)));
}

function tags(run, family, from, to) {
  return run.layers.slice(from, to).map((layer) => run.info.families[family] + layer);
}

function shownFirst(wanted) {
  return wanted === 'share' ? ['total', 'gradient', 'noise'] : [...new Set(['total', wanted])];
}

function order(run, wanted) {
  const all = [...shownFirst(wanted), 'total', 'gradient', 'noise', 'norm_change'];
  return [...new Set(all)].filter((family) => family in run.info.families);
}

async function beside(run) {
  const names = Object.keys(run.info.beside);
  const wanted = names.map((name) => run.info.beside[name]);
  const found = names.length ? await backend.series(run.name, wanted, MOST_POINTS) : [];
  names.forEach((name, i) => {
    run.beside[name] = found[i];
  });
}
