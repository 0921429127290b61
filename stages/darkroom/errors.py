"""What went wrong on the user's side, said in a line."""


class UserError(Exception):
    """A user's mistake: names the key or file, the value, what is allowed and what to type next.

    The scripts print it without a traceback and exit with 1. A programmer's mistake is an assert.
    """
