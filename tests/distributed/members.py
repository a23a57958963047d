"""A hub and its members as threads of one process."""

import threading
import time

from penstock.distributed import exits, member
from penstock.distributed.hub import Hub


class Members:
    """A hub and its members; what ends a process is noted in place of being done."""

    def __init__(self, count, monkeypatch, *, heartbeat_secs=30.0, num_missing=0, **options):
        self.left, self.said, self.timers = [], [], []
        monkeypatch.setattr(exits, "leave", self.left.append)
        monkeypatch.setattr(exits, "say", self.said.append)
        monkeypatch.setattr(exits, "ignore_sigterm", lambda: None)
        # Whoever dumps the stacks later would take the timer of pytest's own.
        monkeypatch.setattr(exits, "arm_stack_dump", lambda secs: self.timers.append("armed"))
        monkeypatch.setattr(exits, "disarm_stack_dump", lambda: self.timers.append("disarmed"))
        monkeypatch.setattr(exits, "dump_stacks", self.said.append)
        for name in ("GRACE_SECS", "GRACE_OF_A_LOSS_SECS", "LINGER_SECS"):
            monkeypatch.setattr(member, name, 0.05)
        options = {"host": "", "hang_secs": None} | options
        self.hub = Hub(count, "token", heartbeat_secs=heartbeat_secs, **options)
        self.hub.start()
        self._count, self._heartbeat_secs, self.all = count, heartbeat_secs, []
        for _ in range(count - num_missing):
            self.add()

    def add(self):
        """Have one more process come."""
        address, secs = ("127.0.0.1", self.hub.port), self._heartbeat_secs
        args = (len(self.all), self._count, address, "token")
        self.all.append(member.Member(*args, heartbeat_secs=secs))

    def run(self, function):
        """Return what the function returned or raised on each member, at the same time."""
        results = [None] * len(self.all)

        def work(index):
            try:
                results[index] = function(self.all[index])
            except BaseException as error:
                results[index] = error

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.all))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self):
        for each in self.all:
            each._over = {"code": 0}
            each.hang_up()
        self.hub.close()


def make_and_close(monkeypatch):
    """Give a function that makes a hub and so many members; close all of them at the end."""
    made = []

    def make_members(count, **options):
        made.append(Members(count, monkeypatch, **options))
        return made[-1]

    yield make_members
    for each in made:
        each.close()


def wait_until(is_so):
    """Wait until something is so."""
    while not is_so():
        time.sleep(0.005)
