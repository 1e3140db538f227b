"""What TensorBoard imports at its start: so little that it cannot fail.

TensorBoard loads the entry points of plugins unguarded, so an import error in a plugin's own module
would end TensorBoard itself. Here it costs the tab, and one line says why.
"""

from __future__ import annotations

import logging

from tensorboard.plugins import base_plugin


class Loader(base_plugin.TBLoader):
    """Makes the tab, or none where something is missing."""

    def load(self, context: base_plugin.TBContext) -> base_plugin.TBPlugin | None:
        """The tab on what TensorBoard was started with; None, with one log line, if it cannot be.

        Args:
          context: TensorBoard's flags and data provider.

        Returns:
          The plugin, or None.
        """
        try:
            from tracker.plugin import tab

            return tab.Updates(context)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            logging.getLogger("tensorboard").warning("The tab Updates is off: %s", reason)
            return None
