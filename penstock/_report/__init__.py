"""The parts of a page about a run: what `penstock report` and the handler `Report` share."""
