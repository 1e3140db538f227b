"""The reading side of captures: `python -m tracker.profiles <command> --logdir=...`.

It finds profiler captures in a logdir, whoever made them, and says where their time goes. It never
imports TensorFlow.
"""
