"""The base of every error a user can cause."""

from __future__ import annotations


class AcespecError(Exception):
    """Something the user can mend. The message is one line: the cause, and the remedy.

    The command line prints it and exits with status 1, without a traceback.
    """
