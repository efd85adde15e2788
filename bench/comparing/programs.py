"""Running other programs. None outlives its use, however this one ends."""

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess

LINES_SHOWN = 5
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failure(Exception):
    """What went wrong, in words for the person at the terminal."""


@contextlib.contextmanager
def running(command, **streams):
    """A started program; in the end it is killed, with all that it has started."""
    # No signal comes between the start and the block that ends what was started.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)

    def apart():
        # A group and no session of its own: a scheduler that shares time between sessions must see only one.
        os.setpgrp()
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    try:
        with started(command, preexec_fn=apart, **streams) as process:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def started(command, **how):
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error}") from error


def check_program(flag, program):
    """A Failure if there is no such program."""
    if shutil.which(program) is None:
        raise Failure(f"{flag} {program}: there is no such program that can be run")


def output_of(command, timeout_s):
    """What a program prints; a Failure if it does not end well."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command, **pipes, text=True, errors="replace") as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{command[0]} took longer than {timeout_s} s") from error
    if process.returncode != 0:
        raise ended_badly(command, process.returncode, errors)
    return output


def ended_badly(command, status, errors):
    """The Failure that a program's end is, with the last lines of what it said."""
    end = f"ended with status {status}"
    if status < 0:
        end = f"was killed by signal {-status} ({signal.strsignal(-status)})"
    return Failure("\n".join([f"{shlex.join(command)} {end}", *last_lines(errors)]))


def last_lines(text):
    return text.strip().splitlines()[-LINES_SHOWN:]


def rows_of(command, timeout_s):
    """The rows that a program prints as a JSON list."""
    text = output_of(command, timeout_s)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Failure(f"{command[0]} printed no JSON: {text[:200]!r}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Failure(f"{command[0]} printed no list of rows")
    return rows


def positive(value, program, what):
    """A number that a program gave, if it is one that can be divided by."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise Failure(f"{program} gave no {what}")
    return float(value)


def speeds_of(rows, tests, program):
    """Tokens per second by the name of the test, from (name, tokens per second): one for every test."""
    speeds = {}
    for test, speed in rows:
        if test in speeds:
            raise Failure(f"{program} gave two speeds for {test}: give each of its modes as a --llama-variant")
        speeds[test] = speed
    return {test: positive(speeds.get(test), program, f"speed for {test}") for test in tests}
