// The tab: what is chosen, what is loaded, and what is drawn of it.

import * as address from './address.js';
import {Aside} from './aside.js';
import * as backend from './backend.js';
import {LOADING, NOT_KEPT, THEMES, UNDEFINED} from './colours.js';
import {TITLES, controls, reflect} from './controls.js';
import {make} from './dom.js';
import * as downloads from './downloads.js';
import * as legend from './legend.js';
import {MOST_POINTS, load} from './loading.js';
import * as numbers from './numbers.js';
import {Panel} from './panel.js';
import * as theme from './theme.js';
import * as tip from './tip.js';

const NEWS = 5000; // milliseconds between looks for news
const SELDOM = 300; // milliseconds between pictures while a run is loaded
const PATIENCE = 4; // and at least so many times as long as loading took

class Tab {
  constructor() {
    this.choice = address.read();
    this.names = [];
    this.runs = {run: null, compare: null}; // loaded, or being loaded
    this.cursor = {layer: '', step: NaN, slot: 'run'};
    this.panels = {run: new Panel(), compare: new Panel()};
    this.wanted = {run: 0, compare: 0}; // the newest request of each
    this.loading = {run: false, compare: false};
    this.took = 0;
    this._build();
  }

  async start() {
    for (const slot of ['run', 'compare']) this._listen(this.panels[slot], slot);
    document.addEventListener('keydown', (event) => this._key(event));
    address.follow(() => this.choose(address.read()));
    new ResizeObserver(() => this.later()).observe(this.main);
    theme.follow(() => this.later());
    window.focus();
    await this._news();
    setInterval(() => this._news(), 1000);
  }

  /** Takes a changed choice. */
  choose(change) {
    const before = {...this.choice};
    Object.assign(this.choice, change);
    if (this.choice.compare === this.choice.run) this.choice.compare = '';
    address.write(this.choice);
    for (const slot of ['run', 'compare']) {
      if (this.choice[slot] !== before[slot]) this._load(slot);
    }
    this.later();
  }

  /** Draws with the next frame; while pieces arrive, not so often that drawing is all it does. */
  later(seldom = false) {
    if (seldom && performance.now() - (this._drawn ?? 0) < SELDOM) return;
    this._frame ??= requestAnimationFrame(() => {
      this._frame = null;
      this.draw();
      this._drawn = performance.now();
    });
  }

  draw() {
    const began = performance.now();
    const shown = this.shown();
    const [first] = shown;
    reflect(this.parts, this.choice, this.names, first);
    this.empty.hidden = Boolean(first?.steps.length);
    this.panels.compare.element.hidden = shown.length < 2;
    this.rows = this._rows(shown);
    if (!first?.steps.length) return;
    const colours = this.theme();
    const view = this._view(shown, colours);
    shown.forEach((_, i) => { // heat maps as wide as each other
      const panel = this.panels[i ? 'compare' : 'run'];
      panel.element.style.flexBasis = `${panel.gutter(view.rows, i === 0)}px`;
    });
    shown.forEach((run, i) => {
      const panel = this.panels[i ? 'compare' : 'run'];
      panel.draw(run, {...view, labels: i === 0});
      const size = `${numbers.count(run.steps.length)} steps · ${numbers.count(run.layers.length)} layers`;
      const name = make('b', {textContent: run.name});
      panel.title.replaceChildren(...(shown.length > 1 ? [make('i', {textContent: 'AB'[i]})] : []), name, ` ${size}`);
    });
    this.parts.matched.textContent = `${numbers.count(this.rows.length)} of ${numbers.count(this._all.length)}`;
    legend.draw(this.scale, colours, this.choice.show);
    this._explain(shown);
    if (this.aside.show(shown, this.choice, view)) this.later(); // the picture has another width now
    this.mark();
    performance.measure('updates-draw', {start: began});
  }

  /** The runs that are there, in order. */
  shown() {
    return ['run', 'compare'].filter((slot) => this.choice[slot]).map((slot) => this.runs[slot])
      .filter(Boolean);
  }

  theme() {
    return THEMES[document.body.classList.contains('dark') ? 'dark' : 'light'];
  }

  mark() {
    for (const slot of ['run', 'compare']) {
      const run = this.runs[slot];
      if (!run?.steps.length || !this.panels[slot].boxes) continue;
      const at = ({layer, step}) => ({
        row: layer ? this.rows.indexOf(layer) : -1,
        column: Number.isFinite(step) ? run.column(step) : -1,
      });
      const {layer, step} = this.choice;
      this.panels[slot].mark(at(this.cursor), at({layer, step: step ? Number(step) : NaN}));
    }
    const {layer, step, slot} = this.cursor;
    const run = this.runs[slot];
    const column = run?.column(step) ?? -1;
    const row = this.rows?.indexOf(layer);
    tip.show(this.tip, this.panels[slot], run, {layer, row, column, family: this.choice.show});
  }

  _build() {
    const save = (kind) => this._save(kind);
    this.parts = controls((change) => this.choose(change), save);
    this.note = make('div', {id: 'note', hidden: true});
    this.empty = make('div', {id: 'empty', textContent: 'Loading …'});
    this.scale = make('canvas', {id: 'scale'});
    this.keys = legend.keys();
    this.tip = make('div', {id: 'tip', hidden: true, role: 'status'});
    this.status = make('span', {id: 'status'});
    this.aside = new Aside((change) => this.choose(change));
    this.main = make('main', {}, this.panels.run.element, this.panels.compare.element, this.aside.element);
    this.panels.compare.element.hidden = true;
    const footer = make('footer', {}, make('span', {textContent: 'too slow'}), this.scale,
      make('span', {textContent: 'too fast'}), ...Object.values(this.keys), this.status);
    [this.slow, this.fast] = [footer.children[0], footer.children[2]];
    document.head.append(make('link', {rel: 'stylesheet', href: new URL('style.css', import.meta.url).href}));
    document.body.append(this.parts.element, this.note, this.empty, this.main, footer, this.tip);
  }

  _rows(shown) {
    this._all = [...new Set(shown.flatMap((run) => run.layers))];
    let pattern = null;
    try {
      pattern = new RegExp(this.choice.layers, 'i');
    } catch { /* half typed */ }
    this.parts.filter.classList.toggle('wrong', !pattern);
    return pattern ? this._all.filter((layer) => pattern.test(layer)) : this._all;
  }

  _view(shown, colours) {
    const filled = shown.filter((run) => run.steps.length);
    const all = (name) => filled.flatMap((run) => run.steps.map((_, i) => run.at(name, i)));
    return {
      rows: this.rows, family: this.choice.show, log: this.choice.axis === 'log', theme: colours,
      range: span(filled.flatMap((run) => [run.steps[0], run.steps[run.steps.length - 1]])),
      losses: span(all('loss').filter(Number.isFinite)),
      stddevs: [...new Set(all('stddev').filter((value) => value >= 0))].sort((a, b) => a - b),
    };
  }

  /** The notes that this data needs, and no others. */
  _explain(shown) {
    const family = this.choice.show;
    const share = family === 'share';
    const holds = (code) => shown.some((run) => run.holds(family, code));
    this.keys.undefined.hidden = share || !holds(UNDEFINED);
    this.keys.share.hidden = !share || !holds(UNDEFINED);
    this.keys.kept.hidden = !holds(NOT_KEPT);
    this.keys.loading.hidden = !holds(LOADING);
    this.keys.skipped.hidden = !shown.some((run) => run.steps.some((_, i) => run.skipped(i)));
    [this.slow.textContent, this.fast.textContent] = share ? ['gradient', 'noise'] : ['too slow', 'too fast'];
    const sampled = shown.filter((run) => run.sampled);
    this.note.hidden = !sampled.length;
    this.note.textContent = sampled.length ? sampledNote(sampled[0]) : '';
    const loading = shown.filter((run) => !run.complete);
    this.status.textContent = loading.length ? 'loading the rest …' : '';
    document.body.dataset.state = loading.length ? 'loading' : 'ready';
  }

  _listen(panel, slot) {
    const at = (event) => {
      const box = panel.canvas.getBoundingClientRect();
      const hit = panel.hit(event.clientX - box.left, event.clientY - box.top);
      return hit && {layer: this.rows[hit.row] ?? '', step: panel.run.steps[hit.column] ?? NaN, slot};
    };
    panel.holder.addEventListener('mousemove', (event) => {
      this.cursor = at(event) ?? {layer: '', step: NaN, slot};
      this.mark();
    });
    panel.holder.addEventListener('mouseleave', () => {
      this.cursor = {layer: '', step: NaN, slot};
      this.mark();
    });
    panel.holder.addEventListener('click', (event) => {
      const found = at(event);
      if (found) this._select(found);
    });
  }

  _select({layer, step}) {
    this.choose({...(layer && {layer}), ...(Number.isFinite(step) && {step: String(step)})});
  }

  _key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = /INPUT|SELECT/.test(event.target.tagName);
    if (event.key === 'Escape') {
      if (typing) event.target.blur();
      else this.choose({layer: '', step: ''});
    } else if (event.key === '/' && !typing) {
      event.preventDefault();
      this.parts.filter.focus();
      this.parts.filter.select();
    } else if (event.key === 'Enter' && typing) {
      event.target.blur();
    } else if (event.key === 'Enter' && event.target === document.body) {
      this._select(this.cursor);
    } else if (event.key.startsWith('Arrow') && !typing) {
      event.preventDefault();
      this._move(event.key);
    }
  }

  _move(key) {
    const {slot} = this.cursor;
    const run = this.runs[slot];
    if (!run?.steps.length || !this.rows.length) return;
    const start = {layer: this.cursor.layer || this.choice.layer, step: this.cursor.step};
    if (!Number.isFinite(start.step)) start.step = this.choice.step ? Number(this.choice.step) : NaN;
    const [row, column] = [this.rows.indexOf(start.layer), run.column(start.step)];
    const to = (place, move, size) => place < 0 ? 0 : Math.max(0, Math.min(size - 1, place + move));
    const down = {ArrowUp: -1, ArrowDown: 1}[key] ?? 0;
    const right = {ArrowLeft: -1, ArrowRight: 1}[key] ?? 0;
    const layer = this.rows[to(row, down, this.rows.length)];
    this.cursor = {layer, step: run.steps[to(column, right, run.steps.length)], slot};
    this.mark();
  }

  /** Looks for new runs, and for new steps of those that are shown. */
  async _news() {
    const now = performance.now();
    const wait = Math.max(NEWS, PATIENCE * this.took);
    if (this._busy || !innerWidth || (this._looked && now - this._looked < wait)) return;
    this._busy = true;
    try {
      this.names = await backend.runs();
      this._default();
      for (const slot of ['run', 'compare']) await this._refresh(slot);
      this._failed('');
    } catch (error) {
      this._failed(`TensorBoard does not answer (${error.message}); still trying.`);
    }
    this._looked = performance.now();
    this._busy = false;
  }

  /** Shows the newest run if none is chosen, and loads what is chosen and not there. */
  _default() {
    const newest = this.names[this.names.length - 1];
    if (newest === undefined) {
      this.empty.textContent = 'No run here has a tag that begins with wur/. Train one with tracker, or write the '
        + 'ratio of each layer as wur/<layer> with any tool, and it will appear.';
      return;
    }
    if (!this.names.includes(this.choice.run)) this.choose({run: newest});
    for (const slot of ['run', 'compare']) {
      if (this.choice[slot] && !this.runs[slot] && !this.loading[slot]) this._load(slot);
    }
    this.later();
  }

  async _refresh(slot) {
    const run = this.runs[slot];
    if (!run?.complete || run.name !== this.choice[slot]) return;
    const info = await backend.layers(run.name);
    if (info.version !== run.info.version) await this._load(slot, true);
  }

  async _load(slot, reload = false) {
    const name = this.choice[slot];
    const number = ++this.wanted[slot];
    const current = () => this.wanted[slot] === number;
    if (!reload) this.runs[slot] = null;
    this.loading[slot] = Boolean(name);
    if (!name) return;
    const began = performance.now();
    try {
      const arrived = (run) => {
        this.later(!run.complete && this.runs[slot] === run && run.pieces > 2);
        this.runs[slot] = run;
      };
      const run = await load(name, this.choice.show, arrived, current, reload);
      if (run) arrived(run);
      this.took = performance.now() - began;
    } catch (error) {
      if (current()) this._failed(`The run ${name} cannot be shown: ${error.message}`);
    }
    if (current()) this.loading[slot] = false;
  }

  _failed(text) {
    this.status.textContent = text || this.status.textContent;
    if (text && !this.runs.run) this.empty.textContent = text;
  }

  _save(kind) {
    const shown = this.shown();
    if (!shown.length) return;
    const name = `updates-${shown[0].name.replaceAll(/[^\w.-]+/g, '-')}`;
    if (kind === 'csv') {
      downloads.save(new Blob(downloads.table(shown, this.rows), {type: 'text/csv'}), `${name}.csv`);
      return;
    }
    const panels = [this.panels.run, this.panels.compare].slice(0, shown.length);
    downloads.picture(panels, this.scale, this.theme(), TITLES[this.choice.show])
      .toBlob((blob) => downloads.save(blob, `${name}.png`));
  }
}

function span(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)],
    [Infinity, -Infinity]);
}

function sampledNote(run) {
  const kept = numbers.count(run.kept);
  return run.kept === MOST_POINTS
    ? `This tab shows at most ${kept} steps of a run; others are left out by chance.`
    : `TensorBoard has kept ${kept} points of each tag, its limit, so that steps may be missing. Start it with `
      + '--samples_per_plugin=scalars=100000 to see all.';
}

/** What TensorBoard calls. */
export function render() {
  new Tab().start();
}
