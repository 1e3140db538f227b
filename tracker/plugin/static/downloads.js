// The picture and its numbers as files.

import {NOT_KEPT, UNDEFINED} from './colours.js';
import {FONT, make} from './dom.js';
import {FAMILIES} from './run.js';

const MARGIN = 16;

/** Panels side by side with their titles and the legend, as one canvas. */
export function picture(panels, legend, theme, title) {
  const scale = window.devicePixelRatio || 1;
  const all = panels.map((panel) => panel.canvas);
  const width = all.reduce((sum, one) => sum + one.width / scale, 0) + MARGIN * (all.length + 1);
  const height = Math.max(...all.map((one) => one.height / scale)) + 96;
  const canvas = make('canvas', {width: width * scale, height: height * scale});
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, width, height);
  context.fillStyle = theme.ink;
  context.font = FONT;
  let x = MARGIN;
  all.forEach((one, i) => {
    context.fillText(`${panels[i].run.name} · ${title}`, x, 26);
    context.drawImage(one, x, 40, one.width / scale, one.height / scale);
    x += one.width / scale + MARGIN;
  });
  context.drawImage(legend, MARGIN, height - 46, legend.width / scale, legend.height / scale);
  return canvas;
}

/** All families of the shown layers, a line for each layer and step. */
export function table(runs, rows) {
  const lines = [`run,step,layer,${FAMILIES.map(title).join()},stddev,loss,state\r\n`];
  for (const run of runs) {
    const there = rows.filter((layer) => run.rows.has(layer));
    run.steps.forEach((step, column) => {
      const beside = `${number(run.at('stddev', column))},${number(run.at('loss', column))}`;
      for (const layer of there) {
        const cells = FAMILIES.map((family) => run.cell(family, run.rows.get(layer), column));
        const state = {[UNDEFINED]: 'undefined', [NOT_KEPT]: 'not kept'}[cells[0].code] ?? '';
        const values = cells.map(({value}) => number(value)).join();
        lines.push(`${quoted(run.name)},${step},${quoted(layer)},${values},${beside},${state}\r\n`);
      }
    });
  }
  return lines;
}

/** Gives people a file. */
export function save(blob, name) {
  const link = make('a', {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function title(family) {
  return {total: 'wur', gradient: 'wur_gradient', noise: 'wur_noise', share: 'noise_share'}[family] ?? family;
}

function number(value) {
  return Number.isNaN(value) ? '' : String(Number(value.toPrecision(8)));
}

function quoted(text) {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
