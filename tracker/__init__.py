"""tracker shows in TensorBoard what each update does to each layer of a TensorFlow model.

Importing the package imports nothing else: TensorFlow is loaded by what needs it.
"""

__version__ = "0.1.0"

_HOMES = {
    "Run": "journal",
    "TrainStep": "loop",
    "Noise": "settings",
    "log": "logbook",
    "Image": "logbook",
    "keras": "keras",
    "v1": "v1",
}


def __getattr__(name: str):
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return module if _HOMES[name] == name else getattr(module, name)
