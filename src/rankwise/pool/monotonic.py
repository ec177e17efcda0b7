"""The machine's monotonic clock, which goes on where a test stops or moves the time.

freezegun replaces `time.monotonic` for all code: rows would wait for others, and workers that hang go unnoticed, until it is put back."""

import time
from functools import partial

monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
monotonic_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
