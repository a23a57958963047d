"""The folder of a run: what is in it, which one it is, and the runs in a folder."""
