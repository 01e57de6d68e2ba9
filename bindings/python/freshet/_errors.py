# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as classes. Each has the code of C++'s errors, and is one of Python's own where there is one."""

__all__ = ["Error", "InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition", "Corrupt", "Unavailable",
           "TimedOut", "OutOfSpace", "Cancelled", "Unsupported", "IoError"]


class Error(Exception):
    """Base of all. `code` says what to do next: "unavailable" and "timed_out" try later, "out_of_space" free something,
    "corrupt" never try again."""

    code = "error"

    def __str__(self) -> str:  # KeyError would quote it.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(Error, ValueError):
    """What was given is wrong; the same call fails again."""

    code = "invalid_argument"


class NotFound(Error, KeyError):
    """Nothing goes by that name."""

    code = "not_found"


class AlreadyExists(Error):
    """The name is taken."""

    code = "already_exists"


class FailedPrecondition(Error):
    """Not in this state: closed, forked, of another shape."""

    code = "failed_precondition"


class Corrupt(Error):
    """Bytes are not what was written."""

    code = "corrupt"


class Unavailable(Error):
    """A peer, or a version, is not there now."""

    code = "unavailable"


class TimedOut(Error, TimeoutError):
    """It took longer than the timeout."""

    code = "timed_out"


class OutOfSpace(Error):
    """Memory, disk or a limit is used up."""

    code = "out_of_space"


class Cancelled(Error):
    """Somebody stopped it."""

    code = "cancelled"


class Unsupported(Error):
    """This build or machine cannot do it; the message says why."""

    code = "unsupported"


class IoError(Error, OSError):
    """The operating system refused."""

    code = "io_error"


# The extension takes them from here.
BY_CODE = {kind.code: kind for kind in (
    InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, Corrupt, Unavailable, TimedOut, OutOfSpace, Cancelled,
    Unsupported, IoError)}


def check_type(what: str, value: object, kind: type, hint: str = "") -> None:
    """InvalidArgument, which says what was given, unless `value` is of that kind."""
    if not isinstance(value, kind):
        wanted = f"{kind.__module__.split('.')[0]}.{kind.__name__}"
        raise InvalidArgument(f"{what} is a {wanted}, not {value!r:.80}{hint}")
