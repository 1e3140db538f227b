// One run as a picture: loss, skipped batches, heat map, stddev, steps. A second canvas over it
// holds the cursor, so that moving it redraws nothing else.

import * as axis from './axis.js';
import {on} from './colours.js';
import {FONT, fitted, make, sized} from './dom.js';
import * as heat from './heat.js';
import * as numbers from './numbers.js';

const GAP = 8;
const LANE = 9; // skipped batches
const STRIP = 16; // stddev
const AXIS = 22;
const TALLEST = 48; // of a row

export class Panel {
  constructor() {
    this.canvas = make('canvas', {className: 'base', role: 'img'});
    this.overlay = make('canvas', {className: 'overlay'});
    this.title = make('div', {className: 'title'});
    this.holder = make('div', {className: 'holder'}, this.canvas, this.overlay);
    this.element = make('section', {className: 'panel'}, this.title, this.holder);
  }

  /**
   * Draws a run.
   *
   * @param run the run.
   * @param view {rows: names of layers, family, log, range: of steps, losses: [low, high],
   *     stddevs: all of them in order, theme, labels: whether names are drawn}.
   */
  draw(run, view) {
    [this.run, this.view] = [run, view];
    const width = this.holder.clientWidth;
    const height = this.holder.clientHeight;
    if (width < 60 || height < 60) return;
    const context = sized(this.canvas, width, height);
    sized(this.overlay, width, height);
    context.font = FONT;
    this.boxes = this._layout(width, height);
    this.edges = axis.edges(run.steps, view.range, this.boxes.heat.width, view.log);
    context.fillStyle = view.theme.paper;
    context.fillRect(0, 0, width, height);
    this._drawHeat(context);
    if (this.boxes.loss) this._drawLoss(context);
    this._drawSkips(context);
    if (this.boxes.strip) this._drawStrip(context);
    this._drawSteps(context);
    if (view.labels) this._drawNames(context);
    this._describe();
  }

  /** Width of what stands left of the heat map, in pixels. */
  gutter(rows, labels) {
    if (!labels) return 46;
    const context = this.canvas.getContext('2d');
    context.font = FONT;
    const widest = shortened(rows).reduce((most, name) => Math.max(most, context.measureText(name).width), 0);
    return Math.ceil(Math.max(52, Math.min(widest + 14, 210)));
  }

  /** What lies under a point of the canvas: {row, column}, either undefined, or null. */
  hit(x, y) {
    if (!this.boxes || !this.run.steps.length) return null;
    const {heat: box, strip, loss} = this.boxes;
    const across = x >= box.x && x < box.x + box.width;
    const row = Math.floor((y - box.y) / box.height * this.view.rows.length);
    const down = y >= box.y && y < box.y + box.height && this.view.rows.length > 0;
    const column = axis.columnAt(this.edges, x - box.x);
    if (across && down) return {row, column};
    if (down && x < box.x && this.view.labels) return {row};
    const [top, bottom] = [loss?.y ?? box.y, (strip ?? box).y + (strip ?? box).height + AXIS];
    return across && y >= top && y < bottom ? {column} : null;
  }

  /** Middle of a cell on the canvas. */
  middle(row, column) {
    const box = this.boxes.heat;
    return {
      x: box.x + (this.edges[column] + this.edges[column + 1]) / 2,
      y: box.y + (row + 0.5) / this.view.rows.length * box.height,
    };
  }

  /** Draws the cursor and the selection: each {row, column}, with -1 for none. */
  mark(cursor, selection) {
    if (!this.boxes || !this.run) return;
    const context = this.overlay.getContext('2d');
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    this._cross(context, selection, this.view.theme.accent, 2);
    this._cross(context, cursor, this.view.theme.ink, 1);
  }

  _layout(width, height) {
    const {run, view} = this;
    this._shown = shortened(view.rows);
    const left = this.gutter(view.rows, view.labels);
    const wide = Math.max(20, Math.floor(width - left - 14));
    const strip = run.beside.stddev ? STRIP + GAP / 2 : 0;
    const free = height - AXIS - strip - LANE - 4;
    const wantsLoss = run.beside.loss ? Math.max(54, Math.min(110, free * 0.2)) : 0;
    const rest = free - wantsLoss - (wantsLoss ? GAP : 0);
    const high = Math.max(10, Math.floor(Math.min(rest, view.rows.length * TALLEST)));
    const loss = wantsLoss ? wantsLoss + Math.min(150, rest - high) : 0;
    const top = 4 + (loss ? loss + GAP : 0) + LANE;
    return {
      loss: loss ? {x: left, y: 4, width: wide, height: loss} : null,
      lane: {x: left, y: top - LANE, width: wide, height: LANE},
      heat: {x: left, y: top, width: wide, height: high},
      strip: strip ? {x: left, y: top + high + GAP / 2, width: wide, height: STRIP} : null,
      axis: {x: left, y: top + high + strip, width: wide, height: AXIS},
    };
  }

  _drawHeat(context) {
    const {run, view, boxes: {heat: box}} = this;
    if (!view.rows.length || !run.steps.length) return;
    if (!run.has(view.family)) {
      context.fillStyle = view.theme.muted;
      context.textAlign = 'center';
      context.fillText('not in this run', box.x + box.width / 2, box.y + box.height / 2);
      return;
    }
    const scale = window.devicePixelRatio || 1;
    const device = (part) => Math.round(part * scale);
    const place = {
      x: device(box.x), y: device(box.y), width: device(box.width), height: device(box.height),
    };
    const rows = view.rows.map((layer) => run.rows.get(layer) ?? -1);
    const {codes} = run.cells(view.family);
    const edges = this.edges.map((edge) => edge * scale);
    heat.draw(context, place, codes, run.steps.length, rows, edges, view.theme, view.family);
    context.strokeStyle = view.theme.line;
    context.lineWidth = 1;
    context.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
  }

  _drawLoss(context) {
    const {run, view, boxes: {loss: box}} = this;
    const [low, high] = view.losses[0] <= view.losses[1] ? view.losses : [0, 1];
    const y = (value) => box.y + 3 + (1 - (value - low) / (high - low || 1)) * (box.height - 6);
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (const tick of numbers.ticks(low, high, Math.max(1, Math.floor(box.height / 30)), false)) {
      context.fillStyle = view.theme.muted;
      context.fillText(String(Number(tick.toPrecision(3))), box.x - 7, y(tick));
      context.fillStyle = view.theme.line;
      context.fillRect(box.x, Math.round(y(tick)), box.width, 1);
    }
    context.textAlign = 'left';
    context.fillStyle = view.theme.muted;
    if (view.labels) context.fillText('loss', 4, box.y + 8);
    const points = run.steps.map((_, column) => [
      box.x + (this.edges[column] + this.edges[column + 1]) / 2, y(run.at('loss', column)),
    ]);
    stroke(context, points, view.theme.ink, 1.5);
  }

  _drawSkips(context) {
    const {run, view, boxes: {lane, heat: box}} = this;
    for (let column = 0; column < run.steps.length; column++) {
      if (!run.skipped(column)) continue;
      const x = box.x + (this.edges[column] + this.edges[column + 1]) / 2;
      context.fillStyle = view.theme.ink;
      context.beginPath();
      context.moveTo(x - 4, lane.y + 1);
      context.lineTo(x + 4, lane.y + 1);
      context.lineTo(x, lane.y + LANE - 1);
      context.fill();
      context.setLineDash([2, 3]);
      context.lineWidth = 1;
      context.strokeStyle = view.theme.muted;
      const start = Math.round(box.x + this.edges[column]) + 0.5; // before the step
      context.beginPath();
      context.moveTo(start, box.y);
      context.lineTo(start, box.y + box.height);
      context.stroke();
      context.setLineDash([]);
    }
  }

  _drawStrip(context) {
    const {run, view, boxes: {strip: box}} = this;
    const ranks = new Map(view.stddevs.map((value, i) => [value, i]));
    for (let column = 0; column < run.steps.length; column++) {
      const rank = ranks.get(run.at('stddev', column));
      if (rank === undefined) continue;
      const [from, to] = [Math.round(this.edges[column]), Math.round(this.edges[column + 1])];
      context.fillStyle = on(view.theme.stddev, ranks.size > 1 ? rank / (ranks.size - 1) : 1);
      context.fillRect(box.x + from, box.y, Math.max(1, to - from), box.height);
    }
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillStyle = view.theme.muted;
    if (view.labels) context.fillText('stddev', box.x - 7, box.y + box.height / 2);
  }

  _drawSteps(context) {
    const {view, boxes: {axis: box}} = this;
    const place = axis.placer(view.range, box.width, view.log);
    context.fillStyle = view.theme.muted;
    context.textBaseline = 'top';
    let free = -Infinity;
    for (const step of numbers.ticks(...view.range, Math.floor(box.width / 80), view.log)) {
      const text = numbers.short(step);
      const wide = context.measureText(text).width;
      const at = box.x + place(step);
      const x = Math.max(box.x + wide / 2, Math.min(at, box.x + box.width + 12 - wide / 2));
      if (x - wide / 2 < free) continue;
      context.fillRect(Math.round(at), box.y, 1, 4);
      context.textAlign = 'center';
      context.fillText(text, x, box.y + 7);
      free = x + wide / 2 + 8;
    }
    context.textAlign = 'right';
    if (view.labels) context.fillText('step', box.x - 7, box.y + 7);
  }

  _drawNames(context) {
    const {view, boxes: {heat: box}} = this;
    const high = box.height / view.rows.length;
    const every = Math.ceil(14 / high); // names do not touch each other
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillStyle = view.theme.ink;
    this._shown.forEach((name, row) => {
      if (row % every) return;
      const y = box.y + (row + 0.5) * high;
      if (y + 6 > box.y + box.height + 8) return;
      context.fillText(fitted(context, name, box.x - 12), box.x - 7, y);
    });
  }

  _cross(context, {row, column}, colour, wide) {
    const box = this.boxes.heat;
    const [top, bottom] = [this.boxes.loss?.y ?? box.y, this.boxes.axis.y + 4];
    context.strokeStyle = colour;
    context.lineWidth = wide;
    if (column >= 0 && column < this.run.steps.length) {
      const x = box.x + (this.edges[column] + this.edges[column + 1]) / 2;
      const half = Math.max(1.5, (this.edges[column + 1] - this.edges[column]) / 2);
      context.strokeRect(x - half, top, 2 * half, bottom - top);
    }
    if (row >= 0 && row < this.view.rows.length) {
      const high = box.height / this.view.rows.length;
      context.strokeRect(box.x - 1, box.y + row * high, box.width + 2, Math.max(2, high - (high > 7)));
    }
  }

  _describe() {
    const {run, view, boxes: {heat: box}} = this;
    Object.assign(this.canvas.dataset, {
      ...box, rows: view.rows.length, columns: run.steps.length, run: run.name, show: view.family,
    });
    this.canvas.setAttribute('aria-label', `Updates of ${view.rows.length} layers of ${run.name}`);
  }
}

/** Names without the beginning that all of them share, up to a `/`. */
export function shortened(names) {
  if (names.length < 2) return names;
  let shared = names[0];
  for (const name of names) while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  const cut = shared.lastIndexOf('/') + 1;
  return names.map((name) => name.slice(cut));
}

/** A line through points; it is interrupted where one is no number. */
export function stroke(context, points, colour, wide) {
  context.strokeStyle = colour;
  context.lineWidth = wide;
  context.lineJoin = 'round';
  context.beginPath();
  let open = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) {
      open = false;
      continue;
    }
    if (open) context.lineTo(x, y);
    else context.moveTo(x, y);
    open = true;
  }
  context.stroke();
}
