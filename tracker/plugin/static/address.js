// The choice in the address: TensorBoard's own, so that a view can be copied from the browser.
//
// TensorBoard keeps `#tab&name=value&...` there and leaves names that it does not know alone. Ours
// begin with `u.`, so that no other tab takes them for its own.

const TAB = 'tracker_updates';
export const DEFAULTS = {run: '', compare: '', show: 'total', layers: '', axis: 'linear', layer: '', step: ''};

function outer() {
  try {
    void window.parent.location.hash; // another origin's would raise
    return window.parent;
  } catch {
    return window;
  }
}

/** What the address says, with defaults for the rest. */
export function read() {
  const choice = {...DEFAULTS};
  for (const part of outer().location.hash.slice(1).split('&')) {
    const [name, value] = part.split('=');
    const own = name.startsWith('u.') && name.slice(2);
    if (own && Object.hasOwn(DEFAULTS, own)) choice[own] = decoded(value);
  }
  return choice;
}

/** Writes a choice into the address, without a step in the browser's history. */
export function write(choice) {
  const at = outer();
  const parts = at.location.hash.slice(1).split('&').filter((part) => part && !part.startsWith('u.'));
  if (at !== window && parts[0] !== TAB) return; // another tab is shown
  for (const [name, value] of Object.entries(choice)) {
    if (value !== DEFAULTS[name]) parts.push(`u.${name}=${encodeURIComponent(value)}`);
  }
  at.history.replaceState(at.history.state, '', `#${parts.join('&')}`);
}

/** Calls back when somebody else has changed the address. */
export function follow(changed) {
  outer().addEventListener('hashchange', changed);
}

function decoded(value) {
  try {
    return decodeURIComponent(value ?? '');
  } catch {
    return '';
  }
}
