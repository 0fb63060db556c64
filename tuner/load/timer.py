"""
Timers of the event loop that fire within a fraction of a millisecond.

Event loops round their own timers up to whole milliseconds, which alone would be a send lag of up to 1 ms. These sit on
Linux's timerfd, which Python offers only from 3.13 on.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


class _Interval(ctypes.Structure):
    _fields_ = (
        ("repeat_s", ctypes.c_long),
        ("repeat_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """
    Calls `due` on the running event loop when the set time has come.

    Args:
        due: Without arguments; exceptions go to the loop's handler.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._fired)

    def set(self, when: float, repeat_s: float = 0.0) -> None:
        """Fire at the monotonic time `when`, at once if it is past; then every `repeat_s`, unless 0."""
        seconds, rest = divmod(max(when, 1e-6), 1.0)
        again, again_rest = divmod(repeat_s, 1.0)
        interval = _Interval(int(again), int(again_rest * 1e9), int(seconds), int(rest * 1e9))
        if _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(interval), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _fired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self._due()
