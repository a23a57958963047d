"""What the hub of process 0 does for many processes: answers, traffic, processor time.

    python -m benchmarks hub [--processes 64 256 1000] [--late_secs 5] [--steady_secs 10]

The hub runs in a process of its own, and another one plays all members: a socket each, and what a
member says on it. Messages are counted at the members' sockets, and the hub's processor time by its
process. An answer is timed from the last arrival to the last member's receipt. The player takes
some of that time itself, and both share the machine's cores.

- alike, one differs: an exchange of 500 bytes, the same of all, or of all but one
- each its own: an exchange of 10 bytes that are another's nowhere; what trainers avoid
- to process 0: `gather` of 500 bytes of each its own, as states for a checkpoint
- late: as the first, where one member comes later than the others
- meeting: all come to a stand at one step, from one member's wish; half are a step behind
- steady: nothing but beats
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import _timing
from penstock.distributed.hub import Hub
from penstock.distributed.listening import LineBuffer, encode, raise_descriptor_limit
from penstock.distributed.secret import prove

_TOKEN, _BEAT_SECS, _GIVE_UP_SECS = "token", 1.0, 60.0
_STATE = {"activity": "is in a step or a handler", "is_at_work": True, "is_compiling": False}


def serve(count: int, pipe: Connection) -> None:
    """Run a hub; answer each question by the seconds of processor time so far."""
    hub = Hub(count, _TOKEN, host="127.0.0.1", heartbeat_secs=30.0, hang_secs=600.0)
    pipe.send(hub.port)
    while pipe.recv():
        pipe.send(time.process_time())


class Player:
    """All members, as the hub sees them."""

    def __init__(self, count: int, port: int) -> None:
        self.count, self.num_bytes, self._positions = count, 0, [0] * count
        self._selector = selectors.DefaultSelector()
        self._lines = [LineBuffer() for _ in range(count)]
        self._beat_at = time.monotonic()
        self._peers: list[socket.socket] = []
        for index in range(count):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers.append(peer)
            self._selector.register(peer, selectors.EVENT_READ, index)
            proof = prove(_TOKEN, f"process {index}")
            self.say(index, {"kind": "hello", "index": index, "proof": proof, "where": "node, 1"})

    def close(self) -> None:
        """End all connections."""
        self._selector.close()
        for peer in self._peers:
            peer.close()

    def say(self, index: int, said: dict[str, Any]) -> None:
        """Send what a member says."""
        position = self._positions[index]
        progress = {"position": position, "step": position, "progress": position}
        data = encode({**said, **progress, "num_calls": 1, **_STATE})
        self.num_bytes += len(data)
        self._peers[index].sendall(data)

    def enter(self, index: int, way: str, text: str) -> None:
        """Have a member enter an exchange."""
        self.say(index, {"kind": "exchange", "name": "trainer.train", "way": way, "text": text})

    def wait(self, kinds: set[str], secs: float = _GIVE_UP_SECS) -> float:
        """Play until all members have heard one of these; return when, infinity if they have not.

        Asked for nothing, it plays for so long.
        """
        missing, end = set(range(self.count)) if kinds else {-1}, time.monotonic() + secs
        while missing and time.monotonic() < end:
            if time.monotonic() - self._beat_at > _BEAT_SECS:
                self._beat_at = time.monotonic()
                for index in range(self.count):
                    self.say(index, {"kind": "beat"})
            for key, _ in self._selector.select(0.02):
                data = key.fileobj.recv(1 << 20)  # pyright: ignore
                self.num_bytes += len(data)
                for said in self._lines[key.data].take(data):
                    if said["kind"] in kinds:
                        missing.discard(key.data)
                    self._reply(key.data, said)
        return time.monotonic() if not missing else float("inf")

    def _reply(self, index: int, said: dict[str, Any]) -> None:
        """Do what a member does by itself."""
        match said["kind"]:
            case "meet":
                self.say(index, {"kind": "beat"})
                self.say(index, {"kind": "stopped"})
            case "run_to":
                self._positions[index] = said["position"]
                self.say(index, {"kind": "stopped"})
            case "failure":
                raise RuntimeError(said["what"])

    def exchange(self, way: str, texts: Sequence[str], late_secs: float = 0.0) -> list[float]:
        """Return seconds from the last arrival, and the bytes that travelled."""
        before = self.num_bytes
        for index in range(1, self.count):
            self.enter(index, way, texts[index])
        if late_secs:
            self.wait(set(), late_secs)
        began = time.monotonic()
        self.enter(0, way, texts[0])
        return [self.wait({"answer"}) - began, self.num_bytes - before]

    def meet(self) -> list[float]:
        """Return seconds from the first wish to the last member's receipt, and the bytes."""
        # Some are a step further, as launches in flight are: the others follow them.
        self._positions = [7 + index % 2 for index in range(self.count)]
        began, before = time.monotonic(), self.num_bytes
        self.say(self.count - 1, {"kind": "ask"})
        return [self.wait({"met"}) - began, self.num_bytes - before]


def measure(count: int, late_secs: float, steady_secs: float) -> dict[str, list[float]]:
    """Return seconds and bytes of each exchange; of the steady state, its share of a core."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=serve, args=(count, its), daemon=True)
    process.start()
    raise_descriptor_limit(count)
    player = Player(count, ours.recv())
    value = json.dumps("x" * 500)
    own = [json.dumps(f"{index:0500d}") for index in range(count)]
    player.exchange("all", [value] * count)  # the first waits for all connections
    found = {
        "alike": player.exchange("all", [value] * count),
        "one differs": player.exchange("all", [own[0], *[value] * (count - 1)]),
        "each its own": player.exchange(
            "all", [json.dumps(f"{index:08d}") for index in range(count)]
        ),
        "to process 0": player.exchange("to_first", own),
        "late": player.exchange("all", [value] * count, late_secs),
        "meeting": player.meet(),
    }

    def ask() -> float:
        ours.send(True)
        return ours.recv()

    before, began, num_bytes = ask(), time.monotonic(), player.num_bytes
    player.wait(set(), steady_secs)
    secs = time.monotonic() - began
    found["steady"] = [(ask() - before) / secs, (player.num_bytes - num_bytes) / secs]
    player.close()
    process.kill()
    process.join()
    process.close()
    for end in (ours, its):
        end.close()
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hub")
    parser.add_argument("--processes", nargs="+", type=int, default=[64, 256, 1000])
    parser.add_argument("--late_secs", type=float, default=5.0)
    parser.add_argument("--steady_secs", type=float, default=10.0)
    chosen = parser.parse_args(list(arguments))
    found = {
        count: measure(count, chosen.late_secs, chosen.steady_secs) for count in chosen.processes
    }
    print(_timing.environment())
    print()
    rows = [
        [
            what,
            *(
                f"{row[what][0]:.1%} of a core, {row[what][1] / 1e3:.0f} kB/s"
                if what == "steady"
                else f"{row[what][0]:.3f} s, {row[what][1] / 1e6:.2f} MB"
                for row in found.values()
            ),
        ]
        for what in next(iter(found.values()))
    ]
    print(_timing.table(["", *(f"{count} processes" for count in found)], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
