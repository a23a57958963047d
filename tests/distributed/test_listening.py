"""Where sockets listen."""

import socket
import sys

import pytest

from penstock.distributed import listening
from penstock.distributed.hub import Hub
from penstock.distributed.listening import listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="calls another loopback address")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", ""])
def test_socket_listens_at_its_host_and_at_no_other_address(host):
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(host, 0, 1) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((host or "localhost", port), timeout=60).close()
        # All of 127.0.0.0/8 is this machine.
        try:
            socket.create_connection(("127.0.0.2", port), timeout=60).close()
            is_everywhere = True
        except ConnectionRefusedError:
            is_everywhere = False
        assert is_everywhere == (not host)


def test_hub_of_one_machine_hears_nobody_outside_it():
    hub = Hub(2, "token", host="127.0.0.1", heartbeat_secs=30.0, hang_secs=None)
    hub.start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", hub.port), timeout=60)
    hub.close()


@pytest.mark.parametrize(
    ("limits", "num_processes", "expected"),
    [
        ((1024, 4096), 2, None),
        ((1024, 20_000), 1000, (4512, 20_000)),
        ((1024, 4096), 1000, (4096, 4096)),
        ((-1, -1), 1000, None),
    ],
)
def test_process_0_of_many_may_open_as_many_descriptors(
    monkeypatch, limits, num_processes, expected
):
    limit = []
    monkeypatch.setattr(listening.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(listening.resource, "setrlimit", lambda which, both: limit.append(both))
    listening.raise_descriptor_limit(num_processes)
    assert limit == ([] if expected is None else [expected])
