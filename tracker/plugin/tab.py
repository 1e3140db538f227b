"""The server's part of the tab: its page, which layers a run has, and their numbers.

GET  runs            names of the runs with ratios, oldest first
GET  layers?run=     what `layers.describe` says, and how many points of a tag TensorBoard keeps
POST series          {"run", "tags", "points"}: at most so many points of each, see `series.pack`
GET  static/<file>   the page
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.data import provider
from tensorboard.plugins import base_plugin
from tensorboard.plugins.scalar import metadata
from werkzeug import wrappers

from tracker.plugin import layers, series, watch

KEPT_BY_DEFAULT = 1000  # TensorBoard's own number of scalars a tag
_MOST_TAGS = 2000  # of one request
_STATIC = pathlib.Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}


class Updates(base_plugin.TBPlugin):
    """The plugin.

    Raises:
      ValueError: if TensorBoard has no data provider.
    """

    plugin_name = (
        "tracker_updates"  # no plugin of others will have it: two of a name end TensorBoard
    )

    def __init__(self, context: base_plugin.TBContext):
        if context.data_provider is None:
            raise ValueError("TensorBoard runs without a data provider.")
        self._data = context.data_provider
        kept = (context.sampling_hints or {}).get(metadata.PLUGIN_NAME, KEPT_BY_DEFAULT)
        self._kept = kept or None  # 0 means all
        self._files = {file.name: file for file in _STATIC.iterdir() if file.suffix in _TYPES}
        self._watch = watch.Watch(self._data)

    def get_plugin_apps(self) -> dict[str, Callable]:
        """The routes, below /data/plugin/tracker_updates."""
        routes = {
            "/runs": self._serve_runs,
            "/layers": self._serve_layers,
            "/series": self._serve_series,
            "/static/*": self._serve_static,
        }
        return {path: wrappers.Request.application(serve) for path, serve in routes.items()}

    def is_active(self) -> bool:
        """Whether a run has ratios, as far as was known a moment ago."""
        return self._watch.active()

    def data_plugin_names(self) -> tuple[str, ...]:
        """No plugin's data makes the tab active by itself: nearly every run has scalars."""
        return ()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The page is an ES module in a frame; it asks for news by itself."""
        return base_plugin.FrontendMetadata(es_module_path="/static/index.js", tab_name="Updates")

    def _serve_runs(self, request: wrappers.Request) -> wrappers.Response:
        return _json(request, {"runs": self._watch.runs()})

    def _serve_layers(self, request: wrappers.Request) -> wrappers.Response:
        run = request.args.get("run", "")
        listed = self._data.list_scalars(
            plugin_util.context(request.environ),
            experiment_id=plugin_util.experiment_id(request.environ),
            plugin_name=metadata.PLUGIN_NAME,
            run_tag_filter=provider.RunTagFilter(runs=[run]),
        ).get(run, {})
        if not layers.has_any(listed):
            raise errors.NotFoundError(f"The run {run!r} has no tag that begins with wur/.")
        return _json(request, {**layers.describe(listed), "kept": self._kept})

    def _serve_series(self, request: wrappers.Request) -> wrappers.Response:
        run, wanted, points = _asked(request)
        found = self._data.read_scalars(
            plugin_util.context(request.environ),
            experiment_id=plugin_util.experiment_id(request.environ),
            plugin_name=metadata.PLUGIN_NAME,
            downsample=points,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=wanted),
        )
        return _json(request, series.pack(found.get(run, {}), wanted))

    def _serve_static(self, request: wrappers.Request) -> wrappers.Response:
        file = self._files.get(request.path.rpartition("/static/")[2])
        if file is None:  # a name that is not one of ours, wherever it would lead
            raise errors.NotFoundError("There is no such file.")
        return http_util.Respond(request, file.read_bytes(), _TYPES[file.suffix])


def _asked(request: wrappers.Request) -> tuple[str, list[str], int]:
    """Run, tags and number of points of a request, checked."""
    try:
        asked: Any = json.loads(request.get_data())
        run, wanted, points = asked["run"], asked["tags"], asked["points"]
    except (ValueError, LookupError, TypeError) as error:
        raise errors.InvalidArgumentError(
            'The request should be POSTed JSON with "run", "tags" and "points".'
        ) from error
    if not isinstance(run, str) or not isinstance(wanted, list) or len(wanted) > _MOST_TAGS:
        raise errors.InvalidArgumentError(
            f"run should be a name, and tags a list of at most {_MOST_TAGS} tags."
        )
    if not all(isinstance(tag, str) for tag in wanted):
        raise errors.InvalidArgumentError("tags should be a list of tags.")
    if not isinstance(points, int) or not 1 <= points <= 10**6:
        raise errors.InvalidArgumentError(f"points={points!r} should be from 1 to 1000000.")
    return run, wanted, points


def _json(request: wrappers.Request, content: dict[str, Any]) -> wrappers.Response:
    text = json.dumps(content)  # TensorBoard's own would look at each number for NaN
    return http_util.Respond(request, text, "application/json")
