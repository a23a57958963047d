"""TensorFlow's random numbers, so that what draws from numpy's can draw from them too.

The generator of Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3"), used as
TensorFlow's kernels use it.
"""

from typing import Any

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_STATELESS_KEY = (0x3EC8F720, 0x02461E29)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Return the four words of Philox 4x32-10."""
    a, b, c, d = counter
    for number in range(10):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        keys = [(k + number * step) & _WORD for k, step in zip(key, _KEY_STEPS, strict=True)]
        a, b = (second >> 32) ^ b ^ keys[0], second & _WORD
        c, d = (first >> 32) ^ d ^ keys[1], first & _WORD
    return [a, b, c, d]


class TensorFlowRandom:
    """The numbers that a stateless op of TensorFlow draws one by one, with numpy's method names.

    Arguments:
      seed: the op's two seeds.
    """

    def __init__(self, seed: tuple[int, int]) -> None:
        words = [word for part in seed for word in (part & _WORD, part >> 32)]
        mixed = philox(words, list(_STATELESS_KEY))
        self._key, self._counter = mixed[:2], [0, 0, *mixed[2:]]
        self._words: list[int] = []

    def _word(self) -> int:
        if not self._words:
            self._words = philox(self._counter, self._key)
            self._counter[0] += 1
        return self._words.pop(0)

    def random(self) -> float:
        """Return a number in [0, 1) of 23 random bits."""
        return (self._word() & 0x7FFFFF) / (1 << 23)

    def integers(self, high: int) -> int:
        """Return a number in 0..high-1; words that would favour the small ones are drawn again."""
        if high & (high - 1) == 0:
            return self._word() & (high - 1)
        rejected = _WORD % high + 1
        while (word := self._word()) < rejected:
            pass
        return word % high


def as_generator(seed: tuple[int, int]) -> Any:
    """Return it in place of a numpy `Generator`."""
    return TensorFlowRandom(seed)
