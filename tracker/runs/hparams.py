"""Hyperparameters in event files, which stand for the flags of runs that we did not write.

>>> read(plugin_data)
{'optimizer': 'adam', 'learning_rate': 0.001}
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorboard.plugins.hparams import plugin_data_pb2


def read(content: bytes) -> dict[str, Any]:
    """The hyperparameters of a session record; none if it is another record, or damaged.

    Args:
      content: the plugin data of the summary `_hparams_/session_start_info`.
    """
    try:
        data = plugin_data_pb2.HParamsPluginData.FromString(content)
    except DecodeError:
        return {}
    return {
        name: json_format.MessageToDict(value)
        for name, value in data.session_start_info.hparams.items()
    }
