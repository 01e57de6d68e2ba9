# SPDX-License-Identifier: Apache-2.0
"""The exceptions. Each has the code of a C++ error, and derives from Python's own exception where there is one."""

__all__ = ["Error", "InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition", "Corrupt", "Unavailable",
           "TimedOut", "OutOfSpace", "Cancelled", "Unsupported", "IoError"]


class Error(Exception):
    """Base of all. `code` says what to do next: "unavailable" and "timed_out": try later; "out_of_space": free
    something; "corrupt": never try again."""

    code = "error"

    def __str__(self) -> str:  # KeyError would quote it.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the same call fails again."""

    code = "invalid_argument"


class NotFound(Error, KeyError):
    """No model, version, tensor or file has that name."""

    code = "not_found"


class AlreadyExists(Error):
    """The name is taken."""

    code = "already_exists"


class FailedPrecondition(Error):
    """The object's state does not allow the call: closed, forked, of another shape."""

    code = "failed_precondition"


class Corrupt(Error):
    """Bytes are not what was written."""

    code = "corrupt"


class Unavailable(Error):
    """A peer, or a version, is not there now."""

    code = "unavailable"


class TimedOut(Error, TimeoutError):
    """The call took longer than its timeout."""

    code = "timed_out"


class OutOfSpace(Error):
    """Memory, disk or a limit is used up."""

    code = "out_of_space"


class Cancelled(Error):
    """The caller stopped the call."""

    code = "cancelled"


class Unsupported(Error):
    """This build or this machine lacks something; the message says what."""

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
