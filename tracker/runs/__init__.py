"""The reading side of runs: `python -m tracker.runs <command> --logdir=...`.

It finds runs in a logdir, whoever wrote them, keeps an index of what their event files say, and
lists, compares, exports and tidies them. It never imports TensorFlow.
"""
