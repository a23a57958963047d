"""What became of the other processes, and whether this one can go on without them."""

from __future__ import annotations

from penstock.distributed.meeting_rules import Message


class Failures:
    """The failures that this process has been told of, the first one first.

    A failure with `until` happened in the call of that number, such as the second `train` or
    `test`; one with `since` ended a process that had made the calls before that number, and one
    with `is_good_end` ended its script so. One with `is_final` ends all of them wherever they are.

    Arguments:
      index: this process.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._all: list[Message] = []

    def add(self, said: Message) -> None:
        """Note a failure."""
        self._all.append(said)

    def find(
        self, num_calls: int, calls: list[str], *, is_entering: bool = False
    ) -> Message | None:
        """Return the first that leaves this process without partners.

        Arguments:
          num_calls: how many calls this process has entered.
          calls: the names of those that it is in, from the outside in.
          is_entering: whether a failure in the call that it enters counts less: it may come here in
            the same way, and be caught by all.
        """
        # Between two calls: past the one, and not yet in the other.
        number = num_calls + (0.0 if calls else 0.5)
        for said in self._all:
            is_stuck = number <= said.get("until", -1) - is_entering
            is_stuck = is_stuck or number >= said.get("since", number + 1)
            if is_stuck or said.get("is_final"):
                return said
        return None

    def describe(self, said: Message, calls: list[str]) -> str:
        """Return a failure as a sentence, and what to do."""
        step = f"global step {said['step']}" if said.get("step") else ""
        facts = ", ".join(each for each in (said.get("where"), step) if each)
        advice = said.get("advice", f"Process {self.index} cannot go on without it")
        # Of a script that an exception ended the calls are as they should be.
        if said.get("is_good_end") and calls:
            advice = f"Call {calls[-1]} on every process, or on none"
        return f"{said.get('what')}{f' ({facts})' if facts else ''}. {advice}."
