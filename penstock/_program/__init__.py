"""What a program function runs in: the frame and its parts.

`names` counts and scopes layers, `requests` keeps what they ask for, `frame` joins both for one
run.
"""
