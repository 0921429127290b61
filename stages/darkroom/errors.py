"""What went wrong on the user's side, said in a line."""

from collections.abc import Sequence


class UserError(Exception):
    """A user's mistake: names the key or file, the value, what is allowed and what to type next.

    The scripts print it without a traceback and exit with 1. A programmer's mistake is an assert.
    """


def some_of(names: Sequence[str], shown: int = 5) -> str:
    """The first few names, and how many more there are: a message must not run over the screen."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
