"""What a reader's iterator may say of its position."""

import numpy as np
import pytest

from penstock.distributed.group import Group
from penstock.trainer._status import gather_states, pick_state


@pytest.mark.parametrize("state", [None, {"position": 3, "files": ["a", "b"]}, b"\x00grain"])
def test_states_of_readers_come_back_as_they_were(state):
    assert pick_state(Group(), gather_states(Group(), state)) == state


def test_state_that_json_cannot_hold_is_refused_with_its_reason():
    with pytest.raises(TypeError, match=r"get_state\(\) got dict that JSON cannot hold"):
        gather_states(Group(), {"position": np.int64(3)})
