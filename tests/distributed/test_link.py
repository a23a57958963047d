"""The link of a process to a hub that does not do its part."""

import socket
import threading

import pytest

from penstock.distributed import exits
from penstock.distributed.link import Link


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone gives up sending")
def test_hub_that_takes_nothing_is_lost_while_a_message_is_sent(server, monkeypatch):
    # The timer of pytest's own.
    monkeypatch.setattr(exits, "arm_stack_dump", lambda secs: None)
    monkeypatch.setattr(exits, "disarm_stack_dump", lambda: None)
    lost, told = threading.Event(), []

    def lose(what):
        told.append(what)
        lost.set()

    link = Link(server.getsockname(), 0.5, hear=print, lose=lose, tick=lambda: False)
    peer, _ = server.accept()
    with peer:
        link.start(lambda: link.send({"kind": "beat"}))
        sending = threading.Thread(target=link.send, args=({"value": "x" * 50_000_000},))
        sending.start()
        assert lost.wait(60)
        sending.join()
    link.hang_up()
    assert told
