"""What a program function runs in: the frame and its three parts.

`names` counts and scopes layers, `requests` keeps what they ask for, `examples` weighs and reduces
over the batch, `frame` joins the three for one run.
"""
