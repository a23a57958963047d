"""What a program function runs in: the `frame` of one run, its inputs and its precision."""
