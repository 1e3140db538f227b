// The column at the right: the chosen layer over time, and all layers at the chosen step.

import {TITLES} from './controls.js';
import * as details from './details.js';
import {make} from './dom.js';
import * as numbers from './numbers.js';

export class Aside {
  /** `choose` takes the change of the choice that a click makes. */
  constructor(choose) {
    this.choose = choose;
    this.layer = make('div', {id: 'layer', hidden: true});
    this.step = make('div', {id: 'step', hidden: true});
    this.element = make('aside', {hidden: true}, this.layer, this.step);
  }

  /** Shows what is chosen; says whether the column has appeared or gone. */
  show(runs, choice, view) {
    const {layer, step} = choice;
    const known = runs.filter((run) => run.rows.has(layer));
    this.layer.hidden = !known.length;
    this.step.hidden = !step || !runs.some((run) => run.column(Number(step)) >= 0);
    const open = !this.layer.hidden || !this.step.hidden;
    const changed = this.element.hidden === open;
    this.element.hidden = !open;
    if (!this.layer.hidden) this._layer(known, runs, layer, step, view);
    if (!this.step.hidden) this._step(runs, choice, view);
    return changed;
  }

  _layer(known, runs, layer, step, view) {
    this.layer.replaceChildren(this._head(layer, '', {layer: ''}));
    for (const run of known) {
      const column = step ? run.column(Number(step)) : -1;
      const canvas = make('canvas', {'data-run': run.name});
      const keys = make('div', {className: 'keys'}, ...details.lineKeys(run, layer, column, view.theme));
      const name = `${'AB'[runs.indexOf(run)]}  ${run.name}`;
      if (runs.length > 1) this.layer.append(make('div', {className: 'name', textContent: name}));
      this.layer.append(make('div', {className: 'chart'}, canvas), keys);
      details.drawLayer(canvas, run, layer, {...view, column, height: known.length > 1 ? 140 : 190});
    }
  }

  _step(runs, {layer, step, show}, view) {
    const scrolled = this.step.querySelector('.scroll')?.scrollTop ?? 0;
    const table = details.table(runs, view.rows, {
      step: Number(step), family: show, layer, title: TITLES[show],
      selected: (name) => this.choose({layer: name}),
    });
    const head = this._head(`Step ${numbers.count(Number(step))}`, show === 'share' ? 'most noise first' : 'worst first', {step: ''});
    const scroll = make('div', {className: 'scroll'}, table);
    this.step.replaceChildren(head, scroll);
    scroll.scrollTop = scrolled;
  }

  _head(text, more, closed) {
    const close = make('button', {
      type: 'button', className: 'close', textContent: '×', title: 'Close (Esc)',
      onclick: () => this.choose(closed),
    });
    return make('h2', {title: text}, make('span', {textContent: text}),
      make('small', {textContent: more}), close);
  }
}
