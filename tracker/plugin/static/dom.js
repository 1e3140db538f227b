// Elements. Text is only ever set as text: names come from files that anybody may have written.

/** An element with properties, attributes ('data-', 'aria-', 'for', 'role') and children. */
export function make(kind, properties = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (/^(data-|aria-|for$|role$|colspan$)/.test(name)) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** Sizes a canvas in CSS pixels; gives its context, scaled to them. */
export function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

export const FONT = '12px Roboto, "Segoe UI", system-ui, sans-serif';

/** A text cut in its middle so that it fits; the ends of layers' names say most. */
export function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [1, text.length];
  while (low < high) {
    const keep = Math.ceil((low + high) / 2);
    if (context.measureText(cut(text, keep)).width <= width) low = keep;
    else high = keep - 1;
  }
  return cut(text, low);
}

function cut(text, keep) {
  const head = Math.floor(keep / 3);
  return `${text.slice(0, head)}…${text.slice(text.length - (keep - head))}`;
}
