"""`python -m tracker.runs`."""

from tracker.runs.main import run

run()
