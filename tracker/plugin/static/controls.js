// The row of controls above the picture.

import {make} from './dom.js';
import {FAMILIES} from './run.js';

export const TITLES = {
  total: 'WUR', gradient: 'Gradient part', noise: 'Noise part', share: 'Noise share',
  norm_change: 'Norm change',
};
const SHORT = {...TITLES, gradient: 'Gradient', noise: 'Noise'};

/** Makes the controls; `chosen` is called with what somebody changed, `asked` with 'png' or 'csv'. */
export function controls(chosen, asked) {
  const select = (name, title) => make('select', {
    id: name, title, onchange: (event) => chosen({[name]: event.target.value}),
  });
  const run = select('run', 'The run that is shown');
  const compare = select('compare', 'A second run beside it, on the same scale');
  const filter = make('input', {
    id: 'layers', type: 'search', placeholder: 'filter   /', spellcheck: false,
    title: 'Show the layers whose name matches this regular expression', oninput: (event) => chosen({layers: event.target.value}),
  });
  const show = group('show', FAMILIES.map((family) => [family, SHORT[family]]), chosen);
  const steps = group('axis', [['linear', 'Linear'], ['log', 'Log']], chosen);
  const matched = make('span', {id: 'matched'});
  const button = (kind, title) => make('button', {
    id: kind, type: 'button', textContent: kind.toUpperCase(), title, onclick: () => asked(kind),
  });
  const element = make('header', {},
    label('Run', run), label('beside', compare), show, label('Layers', filter, matched),
    label('Steps', steps),
    make('span', {className: 'group'}, button('png', 'Download the picture'),
      button('csv', 'Download the numbers of the shown layers')));
  return {element, run, compare, filter, matched, show, steps};
}

/** Shows a choice in the controls. */
export function reflect(parts, choice, names, run) {
  options(parts.run, names.map((name) => [name, name]), choice.run);
  const others = names.filter((name) => name !== choice.run).map((name) => [name, name]);
  options(parts.compare, [['', '–'], ...others], choice.compare);
  if (parts.filter.value !== choice.layers) parts.filter.value = choice.layers;
  press(parts.show, choice.show, (family) => !run || run.has(family));
  press(parts.steps, choice.axis, () => true);
}

function label(text, ...children) {
  return make('span', {className: 'control'}, make('span', {className: 'name', textContent: text}), ...children);
}

function group(name, items, chosen) {
  return make('span', {className: 'group', role: 'group'}, ...items.map(([value, text]) => make('button', {
    type: 'button', textContent: text, 'data-value': value, id: `${name}-${value}`,
    onclick: () => chosen({[name]: value}),
  })));
}

function press(buttons, value, usable) {
  for (const button of buttons.children) {
    button.setAttribute('aria-pressed', String(button.dataset.value === value));
    button.disabled = !usable(button.dataset.value);
    button.title = button.disabled ? 'not in this run' : TITLES[button.dataset.value] ?? '';
  }
}

function options(select, items, value) {
  const key = JSON.stringify(items);
  if (select.dataset.items !== key) {
    select.dataset.items = key;
    select.replaceChildren(...items.map(([one, text]) => make('option', {value: one, textContent: text})));
  }
  if (document.activeElement !== select || select.value !== value) select.value = value;
}
