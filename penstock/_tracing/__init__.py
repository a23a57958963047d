"""Runs of a program function (`probe`), and arrays that no optimizer would see (`untrained`)."""
