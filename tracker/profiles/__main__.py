"""`python -m tracker.profiles`."""

from tracker.profiles.main import PROGRAM

PROGRAM.run()
