"""A step of the site's build: examples in docstrings become blocks of code.

Markdown would take the `>>>` of an example for a quotation in a quotation in a quotation.
"""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    r"""Return a docstring whose examples are fenced.

    >>> fence_examples("Add.\n\n>>> 1 + 1\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", docstring)


class FenceExamples(Extension):
    """Fence the examples of everything that the reference shows."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
