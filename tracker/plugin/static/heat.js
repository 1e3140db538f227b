// The heat map: cells to pixels. Of several cells in one pixel the loudest is drawn, so that a
// single step of a single layer is seen however small the picture.

import {NOT_KEPT, UNDEFINED, loudness, palette, pixelOf} from './colours.js';

/**
 * Draws cells.
 *
 * @param context of the canvas; pixels are written unscaled.
 * @param box {x, y, width, height} in device pixels, whole numbers.
 * @param codes of all cells, row by row; `columns` of them in a row.
 * @param rows which rows to draw, top down; -1 for one without cells.
 * @param edges of the columns, in device pixels from the box's left.
 */
export function draw(context, box, codes, columns, rows, edges, theme, family) {
  const image = context.createImageData(box.width, box.height);
  const pixels = new Uint32Array(image.data.buffer).fill(pixelOf(theme.paper));
  const [colours, loud] = [palette(theme, family), loudness(family)];
  const spans = spansOf(edges, columns, box.width);
  const line = new Uint8Array(box.width);
  const high = box.height / rows.length;
  let drawn = '';
  for (let y = 0; y < box.height; y++) {
    const first = Math.min(rows.length - 1, Math.floor(y / high));
    const last = Math.min(rows.length - 1, Math.max(first, Math.ceil((y + 1) / high) - 1));
    const group = high >= 1 ? [rows[first]] : rows.slice(first, last + 1);
    if (high >= 7 && Math.floor((y + 1) / high) !== first) continue; // a line between rows
    const key = `${first}/${high >= 1 ? first : last}`;
    if (key !== drawn) loudest(line, group, codes, columns, spans, loud);
    drawn = key;
    paint(pixels, y, line, colours, spans, box.width, theme);
  }
  context.putImageData(image, box.x, box.y);
}

/** For each pixel the first and last column in it; -1 where there is none. */
function spansOf(edges, columns, width) {
  const [from, to] = [new Int32Array(width).fill(-1), new Int32Array(width).fill(-1)];
  for (let column = 0; column < columns; column++) {
    const start = Math.max(0, Math.round(edges[column]));
    const end = Math.max(start + 1, Math.round(edges[column + 1]));
    for (let x = start; x < end && x < width; x++) {
      if (from[x] < 0) from[x] = column;
      to[x] = column;
    }
  }
  return {from, to};
}

function loudest(line, group, codes, columns, {from, to}, loud) {
  for (let x = 0; x < line.length; x++) {
    let best = 255;
    for (const row of group) {
      if (row < 0) continue;
      for (let column = from[x]; column >= 0 && column <= to[x]; column++) {
        const code = codes[row * columns + column];
        if (best === 255 || loud[code] > loud[best]) best = code;
      }
    }
    line[x] = best;
  }
}

function paint(pixels, y, line, colours, {from}, width, theme) {
  const [hatch, dot] = [pixelOf(theme.hatch), pixelOf(theme.muted)];
  for (let x = 0; x < width; x++) {
    if (from[x] < 0) continue;
    let colour = colours[line[x]];
    if (line[x] === UNDEFINED && (x + y) % 5 < 2) colour = hatch;
    if (line[x] === NOT_KEPT && x % 4 === 0 && y % 4 === 0) colour = dot;
    pixels[y * width + x] = colour;
  }
}
