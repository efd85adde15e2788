"""What is asked for."""

import argparse
import dataclasses
import os
import pathlib
import shlex

from .programs import Failure, check_program

BUSY_MAX = 1024
DEFAULT_BENCH = "llama-bench"
PEER = "llama.cpp"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to run llama.cpp; its name is how tables call it."""

    name: str
    arguments: list


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"error: {message}\n")


def integer(low, high=None):
    """A number of an argument, from low to high."""

    def parse(text):
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or number < low or (high is not None and number > high):
            bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {bounds}")
        return number

    return parse


def counts(text):
    """A list such as 512,2048 without what stands twice."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 512,2048")
    return list(dict.fromkeys(numbers))


def words(text):
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def variant(text):
    name, colon, arguments = text.partition(":")
    name = name.strip()
    if not colon or not name or "|" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 'name: arguments'")
    return Variant(f"{PEER} {name}", words(arguments))


def parse(description):
    parser = Parser(description=description, allow_abbrev=False)

    def add(*flags, help, default=None, **more):
        shown = help if default in (None, "") else f"{help} [{default}]"
        parser.add_argument(*flags, help=shown, default=default, **more)

    def flag(name, help):
        parser.add_argument(name, action="store_true", help=help)

    add("--verbatim", default="verbatim", metavar="PROGRAM", help="the verbatim to measure")
    add("--llama-bench", metavar="PROGRAM", help=f"the llama-bench to measure [{DEFAULT_BENCH}]")
    add("--llama-batched-bench", metavar="PROGRAM", help="measures --widths of llama.cpp with logits for all rows")
    add("--llama-server", metavar="PROGRAM", help="measure llama-server from end to end in place of llama-bench")
    add("-m", "--model", action="append", required=True, metavar="FILE", help="model file; may be repeated")
    add("-t", "--threads", type=integer(1), default=processors(), metavar="N", help="threads of both")
    add("-p", "--n-prompt", type=counts, default="512", metavar="N,...", help="prompts, in tokens; 0 for none")
    add("-n", "--n-gen", type=counts, default="128", metavar="N,...", help="tokens to generate; 0 for none")
    add("-d", "--n-depth", type=counts, default="0", metavar="N,...", help="tokens before each test")
    add("--widths", type=counts, default="0", metavar="N,...", help="rows of single steps that all want logits")
    flag("--peaks", "say how much of the memory's read rate generation uses")
    add("--busy", type=integer(0, BUSY_MAX), default=0, metavar="N", help="measure also beside N busy processes")
    flag("--load", "measure the time to the first token from a cold and a warm file")
    ways = "a way to run llama.cpp, such as 'flash: -fa 1'; may be repeated, the better one counts"
    add("--llama-variant", type=variant, action="append", metavar="NAME: ARGS", help=ways)
    add("-r", "--repetitions", type=integer(1), default=1, metavar="N", help="repetitions in a round")
    add("--rounds", type=integer(1), default=7, metavar="N", help="rounds")
    add("--timeout-s", type=integer(1), default=3600, metavar="S", help="the longest that one run may take")
    add("--verbatim-args", type=words, default="", metavar="ARGS", help="further arguments for verbatim bench")
    add("--llama-args", type=words, default="", metavar="ARGS", help="further arguments for llama.cpp's programs")
    flag("--json", "print JSON, with every sample")
    return settled(parser.parse_args())


def processors():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settled(options):
    """The options with what follows from them, once they can be followed; else a Failure."""
    for numbers in ("n_prompt", "n_gen", "widths"):
        setattr(options, numbers, [number for number in getattr(options, numbers) if number])
    if options.widths:
        # Every cost is set against that of one row.
        options.widths = list(dict.fromkeys([1, *options.widths]))
    options.llama_variant = options.llama_variant or [Variant(PEER, [])]
    options.labels = labels(options.model)
    options.has_tests = bool(options.n_prompt or options.n_gen or options.widths)
    check(options)
    return options


def check(options):
    if not options.has_tests and not options.load:
        raise Failure("there is nothing to measure: give -p, -n, --widths or --load")
    if options.llama_server and (options.llama_bench or options.llama_batched_bench):
        raise Failure("--llama-server takes the place of --llama-bench and --llama-batched-bench: name one")
    options.llama_bench = options.llama_bench or DEFAULT_BENCH
    names = [variant.name for variant in options.llama_variant]
    if len(set(names)) < len(names):
        raise Failure("--llama-variant: two have the same name")
    needs_bench = options.has_tests and not options.llama_server
    programs = {
        "--verbatim": options.verbatim,
        "--llama-bench": options.llama_bench if needs_bench else None,
        "--llama-batched-bench": options.llama_batched_bench,
        "--llama-server": options.llama_server,
    }
    for flag, program in programs.items():
        if program is not None:
            check_program(flag, program)
    for model in options.model:
        if not os.path.isfile(model):
            raise Failure(f"-m {model}: there is no such file")
        if not os.access(model, os.R_OK):
            raise Failure(f"-m {model}: the file cannot be read")
    if len(set(options.model)) < len(options.model):
        raise Failure("-m: a model is given twice")


def labels(models):
    """What models are called in tables: by the name of the file, or the path where that would not tell them apart."""
    names = [pathlib.Path(model).name for model in models]
    return {model: name if names.count(name) == 1 else model for model, name in zip(models, names)}
