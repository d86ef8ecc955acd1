"""Every error autolayers raises on purpose; anything else is a defect.

    AutolayersError            1   something failed at run time
    ├── UsageError             2   flags that make no sense
    │   ├── LaunchRefused      2   llama.cpp itself would refuse this launch
    │   └── WrongType          2   of the library: a value of another type; a TypeError too
    ├── ModelError             3   a model file that cannot be read
    ├── NoLog                  3   a log that cannot be read
    ├── DeviceError            4   no usable device information
    └── DoesNotFit             5   no placement fits

The number is the exit code of the command line.
"""

from __future__ import annotations


class AutolayersError(Exception):
    """Base of all; `str(error)` is the one line a user sees."""

    # The exit code of the command line, see the module.
    exit_code = 1


class UsageError(AutolayersError):
    # argparse and the shells use 2 for wrong usage.
    exit_code = 2


class LaunchRefused(UsageError):
    """llama.cpp would refuse to start with these flags; the message is its reason."""


class WrongType(UsageError, TypeError):
    """A value that no flag takes; the message names it."""


class ModelError(AutolayersError):
    exit_code = 3


class NoLog(AutolayersError):
    exit_code = 3


class DeviceError(AutolayersError):
    exit_code = 4


class DoesNotFit(AutolayersError):
    exit_code = 5
