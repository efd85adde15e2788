"""Time to the first token from a cold file and from a warm one, beside the time that reading the file takes."""

import contextlib
import os
import select
import subprocess
import tempfile
import time

from .programs import Failure, ended_badly, running
from .rounds import Samples

PIECE_BYTES = 1 << 20
PROMPT = "Once upon a time"
CONTEXT = 512
# Of the bytes of a dropped file: the share that must come from the disk again.
COLD_SHARE_MIN = 0.9


class Loading:
    """Seconds of every model, state of its file (`cold`, `warm`) and side (`read`, `verbatim`, the servers)."""

    def __init__(self, options, servers):
        self.options = options
        self.samples = Samples()
        self.never_cold = set()
        self.sides = {"read": read_s, "verbatim": self.verbatim_s}
        for server in servers:
            self.sides[server.name] = lambda model, server=server: server.first_token_s(model, PROMPT, CONTEXT)

    def measure(self, say):
        for index in range(self.options.rounds):
            for model in self.options.model:
                say(f"round {index + 1} of {self.options.rounds}: {self.options.labels[model]}, loading")
                self.measure_cold(model)
                self.measure_warm(model)
        return self.samples

    def measure_cold(self, model):
        """Nothing, if the file cannot be made cold here."""
        if model in self.never_cold:
            return
        drop(model)
        before = bytes_from_disk()
        read_s(model)
        if bytes_from_disk() - before < COLD_SHARE_MIN * os.path.getsize(model):
            self.never_cold.add(model)
            for side in self.sides:
                self.samples.forget(model=model, state="cold", side=side)
            return
        for side, seconds in self.sides.items():
            drop(model)
            self.samples.add(seconds(model), model=model, state="cold", side=side)

    def measure_warm(self, model):
        for side, seconds in self.sides.items():
            read_s(model)
            self.samples.add(seconds(model), model=model, state="warm", side=side)

    def verbatim_s(self, model):
        options = self.options
        command = [options.verbatim, "run", "-m", model, "-n", "1", "--no-template", "--ctx", str(CONTEXT)]
        return first_byte_s([*command, "--threads", str(options.threads), PROMPT], options.timeout_s)


def first_byte_s(command, timeout_s):
    """Seconds from the start of a program to the first byte that it prints."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log, running(command, stdout=subprocess.PIPE, stderr=log) as process:
        has_printed = select.select([process.stdout], [], [], timeout_s)[0]
        seconds = time.perf_counter() - start
        try:
            output = process.communicate(timeout=timeout_s)[0] if has_printed else None
        except subprocess.TimeoutExpired:
            output = None
        log.seek(0)
        errors = log.read().decode(errors="replace")
    if output is None:
        raise Failure(f"{command[0]} took longer than {timeout_s} s")
    if process.returncode != 0:
        raise ended_badly(command, process.returncode, errors)
    if not output:
        raise Failure(f"{command[0]} printed nothing")
    return seconds


def read_s(path):
    """Seconds that plain reading takes."""
    piece = bytearray(PIECE_BYTES)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    return time.perf_counter() - start


def drop(path):
    """Asks the system to forget what it holds of a file."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            with contextlib.suppress(OSError):  # a file system that cannot write has nothing to write back
                os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_from_disk():
    """Bytes that this process has had read from a disk; 0 where the system does not count them."""
    with contextlib.suppress(OSError):
        with open("/proc/self/io", encoding="ascii") as counters:
            for line in counters:
                name, _, value = line.partition(":")
                if name == "read_bytes":
                    return int(value)
    return 0
