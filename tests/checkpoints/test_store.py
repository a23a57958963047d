"""What lies under checkpoints: checksums, and Orbax's log."""

import logging

import absl.logging
import numpy as np

from penstock._checkpoint import Contents, Position, Store, _orbax
from tests.checkpoints.runs import every_step


def test_log_of_others_is_kept_while_orbax_is_kept_quiet(tmp_path, caplog):
    caplog.set_level(logging.INFO, "absl")
    store = Store(every_step(tmp_path))
    contents = Contents(leaves={"a": np.ones(3)}, position=Position(global_step=1))
    store.write(contents)
    store.read(1)
    assert caplog.messages == []
    with _orbax.quiet():
        absl.logging.info("mine")
        assert logging.getLogger("absl").level == logging.INFO
    assert caplog.messages == ["mine"]
    store.close()
    _orbax.make_checkpointer().restore(tmp_path / "1")
    assert len(caplog.messages) > 1  # Orbax does tell, where nobody keeps it quiet
