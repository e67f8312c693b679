"""What several test modules share."""

from __future__ import annotations

import os

# Before numba or torch start their threads: tests run beside each other on small machines.
os.environ.setdefault("OMP_NUM_THREADS", "1")
