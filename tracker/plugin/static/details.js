// What a click asks for: one layer over time, and all layers at one step.

import * as axis from './axis.js';
import {NOT_KEPT, UNDEFINED} from './colours.js';
import {FONT, make, sized} from './dom.js';
import * as numbers from './numbers.js';
import {shortened, stroke} from './panel.js';

const LINES = [['total', 'WUR'], ['gradient', 'gradient part'], ['noise', 'noise part']];
const [LEFT, TOP, RIGHT, BOTTOM] = [44, 8, 10, 22];

/** The three series of a layer over the steps of a run, with the healthy band. */
export function drawLayer(canvas, run, layer, {range, log, theme, column, height}) {
  const width = canvas.parentElement.clientWidth;
  const context = sized(canvas, width, height);
  context.font = FONT;
  const row = run.rows.get(layer);
  const series = LINES.filter(([family]) => run.has(family))
    .map(([family]) => [family, run.steps.map((_, i) => run.cell(family, row, i).value)]);
  const logs = series.flatMap(([, values]) => values).filter((v) => v > 0 && v < Infinity).map(Math.log10);
  const low = Math.floor(logs.reduce((a, b) => Math.min(a, b), -4));
  const high = Math.ceil(logs.reduce((a, b) => Math.max(a, b), -2));
  const wide = width - LEFT - RIGHT;
  const place = axis.placer(range, wide, log);
  const y = (power) => TOP + (high - power) / (high - low) * (height - TOP - BOTTOM);
  context.fillStyle = theme.band;
  context.fillRect(LEFT, y(-2), wide, y(-4) - y(-2));
  grid(context, {low, high, y, wide, width, height, range, place, log, theme});
  if (column >= 0 && column < run.steps.length) {
    context.fillStyle = theme.accent;
    context.fillRect(LEFT + place(run.steps[column]) - 0.5, TOP, 1.5, height - TOP - BOTTOM);
  }
  for (const [family, values] of series) {
    const points = values.map((value, i) => [LEFT + place(run.steps[i]), value > 0 ? y(Math.log10(value)) : NaN]);
    stroke(context, points, theme[family], family === 'total' ? 3 : 1.3);
    context.fillStyle = theme[family];
    if (points.length < 60) points.forEach(([x, at]) => at && context.fillRect(x - 1.5, at - 1.5, 3, 3));
  }
}

function grid(context, {low, high, y, wide, height, range, place, log, theme}) {
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  const every = Math.ceil((high - low) / 6);
  for (let power = low; power <= high; power += every) {
    context.fillStyle = theme.line;
    context.fillRect(LEFT, Math.round(y(power)), wide, 1);
    context.fillStyle = theme.muted;
    context.fillText(power ? `1e${power}` : '1', LEFT - 6, y(power));
  }
  context.textBaseline = 'top';
  context.textAlign = 'center';
  for (const step of numbers.ticks(...range, 4, log)) {
    const text = numbers.short(step);
    const half = context.measureText(text).width / 2;
    const x = Math.min(LEFT + place(step), LEFT + wide + RIGHT - half);
    context.fillText(text, x, height - BOTTOM + 6);
  }
}

/** The lines' names, with the layer's numbers at a column. */
export function lineKeys(run, layer, column, theme) {
  return LINES.filter(([family]) => run.has(family)).map(([family, name]) => {
    const swatch = make('i', {className: 'line'});
    swatch.style.background = theme[family];
    const text = ` ${name} ${worded(run.cell(family, run.rows.get(layer), column), family)}`;
    return make('span', {className: 'key', 'data-line': family}, swatch, column < 0 ? ` ${name}` : text);
  });
}

/** A cell in words. */
export function worded(cell, family) {
  if (cell.code < UNDEFINED) return Number.isNaN(cell.value) ? 'loading' : numbers.of(family, cell.value);
  return {[UNDEFINED]: 'undefined', [NOT_KEPT]: 'not kept'}[cell.code] ?? '–';
}

/** Layers of the first run at a step, furthest from healthy first; those without a value last. */
export function worst(runs, rows, step, family) {
  const columns = runs.map((run) => run.column(step));
  const entries = rows.map((layer) => ({
    layer, cells: runs.map((run, i) => run.cell(family, run.rows.get(layer), columns[i])),
  }));
  const far = ({cells: [{value}]}) => {
    if (Number.isNaN(value)) return -1;
    return family === 'share' ? value : Math.abs(Math.log10(value) + 3);
  };
  return entries.sort((a, b) => far(b) - far(a));
}

/** The table of all layers at a step; `selected` is called with the layer of a row. */
export function table(runs, rows, {step, family, layer, title, selected}) {
  const extra = runs.length === 1 && family === 'total'
    ? LINES.slice(1).filter(([part]) => runs[0].has(part)) : [];
  const heads = runs.length > 1 ? ['A', 'B'] : [title];
  const head = make('tr', {}, ...['layer', ...heads, ...extra.map(([, name]) => name.split(' ')[0])]
    .map((text) => make('th', {textContent: text})));
  const column = runs[0].column(step);
  const short = new Map(shortened(rows).map((name, i) => [rows[i], name]));
  const body = worst(runs, rows, step, family).map(({layer: name, cells}) => {
    const parts = extra.map(([part]) => worded(runs[0].cell(part, runs[0].rows.get(name), column), part));
    const texts = [...cells.map((cell) => worded(cell, family)), ...parts];
    return make('tr', {
      className: [loudly(cells[0], family), name === layer ? 'selected' : ''].join(' '),
      onclick: () => selected(name), 'data-layer': name,
    }, make('td', {title: name}, make('bdi', {textContent: short.get(name)})), ...texts.map((text) => make('td', {textContent: text})));
  });
  return make('table', {}, make('thead', {}, head), make('tbody', {}, ...body));
}

function loudly({value}, family) {
  if (family === 'share' || Number.isNaN(value)) return '';
  return value < 1e-4 ? 'slow' : value > 1e-2 ? 'fast' : '';
}
