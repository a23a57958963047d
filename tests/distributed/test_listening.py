"""Where sockets listen."""

import socket
import sys

import pytest

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
