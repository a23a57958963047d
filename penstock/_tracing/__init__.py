"""A program function, run: with values (`evaluation`), or without, to learn what it does (`probe`).

`batch_dependence` follows two traces of it operation by operation, by the rules beside it, and
tells what each returned value is to the batch; `untrained` finds arrays that no optimizer would
see.
"""
