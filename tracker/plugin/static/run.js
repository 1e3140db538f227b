// One run: its columns (steps), rows (layers), and the cells of each family.
//
// Numbers arrive in pieces: first of all layers a few steps, then of a few layers all steps. What is
// drawn is made from what is there; a cell knows whether it has a value, and if not, why.

import {ABSENT, LOADING, NOT_KEPT, UNDEFINED, code} from './colours.js';

export const FAMILIES = ['total', 'gradient', 'noise', 'share', 'norm_change'];

export class Run {
  constructor(name, info, most) {
    this.name = name;
    this.info = info;
    this.layers = info.layers;
    this.rows = new Map(info.layers.map((layer, i) => [layer, i]));
    this.kept = Math.min(info.kept ?? Infinity, most);
    this.beside = {}; // loss, stddev and skipped
    this.complete = false;
    this._series = Object.fromEntries(FAMILIES.map((family) => [family, new Map()]));
    this._cells = {};
    this._columns = null;
  }

  has(family) {
    const found = this.info.families;
    return family === 'share' ? 'gradient' in found && 'noise' in found : family in found;
  }

  /** Takes series of a family: of layers from a row on; `whole` unless it is a first look. */
  add(family, row, found, whole) {
    found.forEach((one, i) => {
      const codes = one && Uint8Array.from(one.values, (value) => code(value, family));
      this._series[family].set(row + i, one && {...one, codes, whole});
    });
    this._cells = {};
    if (family === 'total') this._columns = null;
  }

  /** Whether TensorBoard dropped points of the layers, or we do. */
  get sampled() {
    this._align();
    return this._sampled;
  }

  /** Steps of the columns. */
  get steps() {
    this._align();
    return this._steps;
  }

  /** Column of a step; -1 if there is none. */
  column(step) {
    this._align();
    return this._columns.get(step) ?? -1;
  }

  /** {values: Float32Array, codes: Uint8Array, row by row} of a family. */
  cells(family) {
    this._align();
    this._cells[family] ??= family === 'share' ? this._share() : this._fill(family);
    return this._cells[family];
  }

  /** Whether some cell of a family has a code. */
  holds(family, code) {
    return this.has(family) && this.cells(family).codes.includes(code);
  }

  /** A cell: {value, code}; the code of a value is that of its colour. */
  cell(family, row, column) {
    if (row === undefined || column < 0 || !this.has(family)) return {value: NaN, code: ABSENT};
    const {values, codes} = this.cells(family);
    const at = row * this.steps.length + column;
    return {value: values[at], code: codes[at]};
  }

  /** Value of 'loss' or 'stddev' at a column; NaN if there is none. */
  at(name, column) {
    this._align();
    return this._besides[name]?.[column] ?? NaN;
  }

  /** Batches without an update since the column before. */
  skipped(column) {
    this._align();
    return this._skips[column] ?? 0;
  }

  _align() {
    if (this._columns) return;
    const lists = new Set();
    this._sampled = false;
    for (const one of this._series.total.values()) {
      if (!one) continue;
      lists.add(one.steps);
      this._sampled ||= one.whole && one.steps.length >= this.kept;
    }
    const all = new Set();
    lists.forEach((steps) => steps.forEach((step) => all.add(step)));
    this._steps = [...all].sort((a, b) => a - b);
    this._columns = new Map(this._steps.map((step, i) => [step, i]));
    this._besides = {loss: this._besideOf('loss'), stddev: this._besideOf('stddev')};
    this._skips = this._skipsOf();
    this._cells = {};
  }

  _besideOf(name) {
    const found = this.beside[name];
    if (!found) return null;
    const values = new Float32Array(this.steps.length).fill(NaN);
    found.steps.forEach((step, i) => {
      const column = this._columns.get(step);
      if (column !== undefined) values[column] = found.values[i];
    });
    return values;
  }

  _skipsOf() {
    const skips = new Float32Array(this.steps.length);
    const found = this.beside.skipped;
    let column = 0;
    found?.steps.forEach((step, i) => {
      while (column < skips.length - 1 && this.steps[column] < step) column++;
      if (this.steps[column] >= step && found.values[i] > 0) skips[column] += found.values[i];
    });
    return skips;
  }

  _fill(family) {
    const [rows, columns] = [this.layers.length, this.steps.length];
    const values = new Float32Array(rows * columns).fill(NaN);
    const codes = new Uint8Array(rows * columns).fill(LOADING);
    const places = new Map(); // of each list of steps, its columns
    for (const [row, one] of this._series[family]) {
      const start = row * columns;
      if (!one) {
        codes.fill(ABSENT, start, start + columns);
        continue;
      }
      if (!places.has(one.steps)) places.set(one.steps, one.steps.map((s) => this._columns.get(s)));
      const hole = one.steps.length >= this.kept ? NOT_KEPT : UNDEFINED;
      if (one.whole) codes.fill(hole, start, start + columns);
      this._row(one, places.get(one.steps), start, values, codes);
    }
    return {values, codes};
  }

  _row(one, columns, start, values, codes) {
    for (let i = 0; i < columns.length; i++) {
      if (columns[i] === undefined) continue;
      values[start + columns[i]] = one.values[i];
      codes[start + columns[i]] = one.codes[i];
    }
    if (one.whole) return;
    let last = codes[start + (columns[0] ?? 0)]; // a first look: colours go on to the next point
    for (let at = start; at < start + this.steps.length; at++) {
      if (codes[at] === LOADING) codes[at] = last;
      last = codes[at];
    }
  }

  _share() {
    const [gradient, noise] = [this.cells('gradient'), this.cells('noise')];
    const codes = Uint8Array.from(gradient.codes);
    const values = gradient.values.map((part, i) => noise.values[i] / (part + noise.values[i]));
    codes.forEach((one, i) => {
      if (one >= UNDEFINED) return;
      codes[i] = noise.codes[i] < UNDEFINED ? code(values[i], 'share') : noise.codes[i];
    });
    return {values, codes};
  }
}
