"""Processes that compete for the processors."""

import contextlib
import os
import subprocess
import sys

from .programs import Failure, running

# It ends with its parent, even if the parent is killed and cannot end it.
SPIN = """
import os, sys
parent, processor = map(int, sys.argv[1:])
if processor >= 0:
    os.sched_setaffinity(0, {processor})
print("spinning", flush=True)
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def competing(count):
    """So many busy processes, each bound to one processor in turn, until the end of the block."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else [-1]
    with contextlib.ExitStack() as started:
        processes = []
        for index in range(count):
            command = [sys.executable, "-S", "-c", SPIN, str(os.getpid()), str(processors[index % len(processors)])]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            processes.append(started.enter_context(running(command, **streams)))
        if not all(process.stdout.readline() for process in processes):
            raise Failure("a busy process that should compete has not started")
        yield
