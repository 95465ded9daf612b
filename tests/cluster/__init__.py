"""Searches of several machines on real parts."""

import os
import threading
import time

if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
    # In a process whose wall clock alone is moved, libfaketime 0.9.10 lets clock_nanosleep() of a
    # monotonic time fail, which is time.sleep(); waiting for a lock works. This package is imported
    # before whatever sleeps.
    vars(time).update(sleep=lambda seconds: threading.Event().wait(max(0.0, seconds)) and None)
