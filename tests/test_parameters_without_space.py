"""Parameters on a disk that does not take them."""

import resource

import numpy as np
import pytest

from penstock import _parameters


def test_file_that_the_disk_does_not_take_is_an_os_error_and_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*params\.safetensors"):
            _parameters.save(tmp_path, {"params": {"w": np.zeros([1000], np.float32)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
