"""Imports TensorFlow without its start-up chatter.

TensorFlow's C++ side writes to file descriptor 2 before any Python setting can stop it. What it
says is kept and shown if the import fails.

    >>> quiet.import_tensorflow()
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from absl import flags, logging


def import_tensorflow(logical_cpus: int = 1, first: Callable[[], Any] | None = None) -> Any:
    """Imports TensorFlow and Keras; stderr stays silent unless that fails.

    Args:
      logical_cpus: devices to divide the CPU into, which must be said before the first is used.
      first: called before any device is used; what it returns is returned.
    """
    found, told = None, False
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if logging.get_verbosity() == logging.INFO and not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            import tensorflow as tf

            if logical_cpus > 1:
                tf.config.set_logical_device_configuration(
                    tf.config.list_physical_devices("CPU")[0],
                    [tf.config.LogicalDeviceConfiguration()] * logical_cpus,
                )
            if first is not None:
                told = True  # by what it raises, in one sentence
                found = first()
                told = False
            # The first use of a device says more than the import does.
            tf.config.list_physical_devices()
            tf.constant(0)
        except BaseException:
            if not told:
                kept.seek(0)
                os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return found
