"""Several processes that train as one: how they are started, and what their ends mean."""
