// Colours of both themes, and from a number to the code that is drawn.
//
// A cell is one byte: 0 to 239 are values (for ratios 40 a decade from 1e-6 to 1, so that the edges
// of the healthy band fall between two codes), the rest say why there is no value. Blue against
// orange is told apart in all common kinds of colour blindness; in the band both are pale.

export const LOWEST = -6; // log10 of the ratio
export const HIGHEST = 0;
export const LEVELS = 240;
export const UNDEFINED = 240; // no ratio was written: the layer was all zeros before the update
export const NOT_KEPT = 241; // TensorBoard's sampling dropped the point
export const LOADING = 242;
export const ABSENT = 243; // the layer, or this part of it, is not in the run

export const THEMES = {
  light: {
    paper: '#ffffff', ink: '#1f2328', muted: '#656d76', line: '#d8dee4', soft: '#f3f5f7',
    accent: '#0b57d0', total: '#1f2328', gradient: '#0072b2', noise: '#d55e00', band: '#e6f2ea',
    hatch: '#57606a', hatched: '#eaeef2',
    ratio: [[-6, '#08306b'], [-5, '#2171b5'], [-4, '#6fb0e6'], [-4, '#dce8f4'], [-3, '#f5f5f3'],
      [-2, '#fae6d6'], [-2, '#f6a04d'], [-1, '#d4570b'], [0, '#6b1d00']],
    share: [[0, '#f5f5f3'], [0.5, '#b79fd9'], [1, '#4a1486']],
    stddev: [[0, '#e3f1ee'], [0.5, '#5bb5a6'], [1, '#00564a']],
  },
  dark: {
    paper: '#1f2023', ink: '#e8eaed', muted: '#9aa0a6', line: '#3c4043', soft: '#292a2d',
    accent: '#8ab4f8', total: '#e8eaed', gradient: '#56b4e9', noise: '#f0883e', band: '#23312a',
    hatch: '#9aa0a6', hatched: '#33353a',
    ratio: [[-6, '#d3ecff'], [-5, '#6bbcff'], [-4, '#1f78c8'], [-4, '#273442'], [-3, '#2b2c2f'],
      [-2, '#42332a'], [-2, '#b8560a'], [-1, '#ff9a45'], [0, '#ffe3bf']],
    share: [[0, '#2b2c2f'], [0.5, '#7a5bb5'], [1, '#e2d6ff']],
    stddev: [[0, '#2c3835'], [0.5, '#2f8576'], [1, '#8df0dc']],
  },
};

/** Code of a value of a family; NaN has none and is undefined. */
export function code(value, family) {
  if (Number.isNaN(value)) return UNDEFINED;
  const part = family === 'share' ? value : (Math.log10(value) - LOWEST) / (HIGHEST - LOWEST);
  return Math.max(0, Math.min(LEVELS - 1, Math.floor(part * LEVELS + 1e-5)));
}

/** How loud each code is: of several cells in one pixel the loudest is drawn. */
export function loudness(family) {
  const loud = new Float32Array(256).fill(-1);
  for (let i = 0; i < LEVELS; i++) loud[i] = family === 'share' ? i : Math.abs(i - LEVELS / 2 + 0.5);
  loud[UNDEFINED] = family === 'share' ? 0 : LEVELS / 6; // above the band, below what is outside
  [loud[NOT_KEPT], loud[LOADING], loud[ABSENT]] = [-1, -2, -3];
  return loud;
}

/** 32-bit pixels of all codes. */
export function palette(theme, family) {
  const colours = new Uint32Array(256).fill(pixel(parse(theme.paper)));
  const share = family === 'share';
  for (let i = 0; i < LEVELS; i++) {
    const part = (i + 0.5) / LEVELS;
    colours[i] = pixel(between(share ? theme.share : theme.ratio,
      share ? part : LOWEST + part * (HIGHEST - LOWEST)));
  }
  colours[UNDEFINED] = pixel(parse(theme.hatched));
  colours[LOADING] = pixel(parse(theme.soft));
  return colours;
}

/** A 32-bit pixel of a CSS colour '#rrggbb'. */
export function pixelOf(colour) {
  return pixel(parse(colour));
}

/** The colour of a position on a scale of stops, as '#rrggbb'. */
export function on(stops, at) {
  const hex = (part) => Math.round(part).toString(16).padStart(2, '0');
  return `#${between(stops, at).map(hex).join('')}`;
}

function between(stops, at) {
  let i = stops.findIndex(([place]) => place > at);
  if (i === 0) return parse(stops[0][1]);
  if (i < 0) return parse(stops[stops.length - 1][1]);
  const [[from, one], [to, other]] = [stops[i - 1], stops[i]];
  const t = (at - from) / (to - from);
  const [a, b] = [parse(one), parse(other)];
  return a.map((part, k) => part + t * (b[k] - part));
}

function parse(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function pixel([red, green, blue]) {
  return (255 << 24 | Math.round(blue) << 16 | Math.round(green) << 8 | Math.round(red)) >>> 0;
}
