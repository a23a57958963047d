"""What a program function runs in: `frame` joins for one run what layers ask for (`requests`)."""
