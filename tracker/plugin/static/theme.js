// Light or dark, as TensorBoard is; as the system is where TensorBoard cannot be seen.

/** Keeps the class `dark` of the page right; calls back when it has changed. */
export function follow(changed) {
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.body;
  } catch { /* framed by another origin */ }
  const preferred = window.matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const dark = outer ? outer.classList.contains('dark-mode') : preferred.matches;
    document.body.classList.toggle('dark', dark);
    changed();
  };
  apply();
  if (outer) new MutationObserver(apply).observe(outer, {attributeFilter: ['class']});
  else preferred.addEventListener('change', apply);
}
