"""tracker shows in TensorBoard what each update does to each layer of a TensorFlow model.

Importing the package imports nothing else: TensorFlow is loaded by what needs it.
"""

__version__ = "0.1.0"
