"""`python -m tracker.runs`."""

from tracker.runs.main import PROGRAM

PROGRAM.run()
