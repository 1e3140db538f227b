// What is under the cursor, in words beside it.

import {TITLES} from './controls.js';
import {worded} from './details.js';
import {make} from './dom.js';
import * as numbers from './numbers.js';

const AWAY = 18; // pixels from the cursor

/** Shows a cell, a layer or a step of a panel; nothing if the cursor is on none. */
export function show(tip, panel, run, {layer, column, row, family}) {
  tip.hidden = !run || (!layer && column < 0);
  if (tip.hidden) return;
  const title = layer ? [make('b', {textContent: layer})] : [];
  tip.replaceChildren(...title, ...lines(run, layer, column, family).map(([name, text]) => make(
    'div', {'data-field': name}, make('span', {textContent: name}), make('span', {textContent: text}))));
  place(tip, panel, panel.middle(Math.max(0, row), Math.max(0, column)), column < 0);
}

function place(tip, panel, point, atName) {
  const box = panel.canvas.getBoundingClientRect();
  const x = box.left + (atName ? panel.boxes.heat.x : point.x);
  const left = x + AWAY + tip.offsetWidth > innerWidth ? x - tip.offsetWidth - AWAY : x + AWAY;
  const top = Math.min(box.top + point.y + AWAY, innerHeight - tip.offsetHeight - 6);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function lines(run, layer, column, family) {
  if (column < 0) return [];
  const row = run.rows.get(layer);
  const found = [['step', numbers.count(run.steps[column])]];
  const cell = (part, name) => found.push([name, worded(run.cell(part, row, column), part)]);
  if (layer) {
    for (const part of ['total', 'gradient', 'noise']) if (run.has(part)) cell(part, name(part));
    if (family === 'share' || family === 'norm_change') cell(family, name(family));
  }
  const [stddev, loss] = [run.at('stddev', column), run.at('loss', column)];
  if (!Number.isNaN(stddev)) found.push(['stddev', numbers.plain(stddev)]);
  if (!Number.isNaN(loss)) found.push(['loss', loss.toPrecision(4)]);
  if (run.skipped(column)) found.push(['skipped before', `${run.skipped(column)} batches`]);
  return found;
}

function name(family) {
  return family === 'total' ? 'WUR' : TITLES[family].toLowerCase();
}
