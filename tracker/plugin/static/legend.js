// What the colours mean.

import {HIGHEST, LOWEST, on} from './colours.js';
import {FONT, make, sized} from './dom.js';

const [WIDE, HIGH, SIDE] = [340, 30, 20];

/** The legend as one canvas for the page and for pictures. */
export function draw(canvas, theme, family) {
  const context = sized(canvas, WIDE, HIGH);
  context.font = FONT.replace('12px', '11px');
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, WIDE, HIGH);
  const share = family === 'share';
  for (let x = 0; x < WIDE - 2 * SIDE; x++) {
    const part = (x + 0.5) / (WIDE - 2 * SIDE);
    context.fillStyle = on(share ? theme.share : theme.ratio,
      share ? part : LOWEST + part * (HIGHEST - LOWEST));
    context.fillRect(SIDE + x, 1, 1, 12);
  }
  context.fillStyle = theme.muted;
  context.textAlign = 'center';
  context.textBaseline = 'top';
  const ticks = share ? [0, 0.25, 0.5, 0.75, 1] : [-6, -5, -4, -3, -2, -1, 0];
  ticks.forEach((tick, i) => {
    const x = SIDE + i / (ticks.length - 1) * (WIDE - 2 * SIDE);
    context.fillText(share ? `${100 * tick} %` : tick ? `1e${tick}` : '1', x, 17);
  });
}

/** Swatches of what is no value; only those that occur are shown. */
export function keys() {
  const key = (name, text) => make('span', {className: `key ${name}`, hidden: true},
    make('i', {className: 'swatch'}), text);
  return {
    undefined: key('undefined', 'undefined: no ratio was written'),
    share: key('undefined', 'no update that could be shared'),
    kept: key('kept', 'not kept by TensorBoard'),
    skipped: key('skipped', 'batches skipped before the step'),
    loading: key('loading', 'loading'),
  };
}
