"""A program function, run: with values (`evaluation`), or without, to learn what it does (`probe`).

`untrained` finds arrays that no optimizer would see, `name_checks` two programs that disagree.
"""
