"""Verbatim's speeds."""

from . import tests
from .programs import positive, rows_of, speeds_of

# Not a test: how often in a second the machine could read the whole model file.
READ = "read"


class Verbatim:
    """`verbatim bench`, as a side that takes its turn."""

    name = "verbatim"

    def __init__(self, options):
        self.options = options
        self.tests = tests.speeds(options) + tests.widths(options)
        self.isa = None

    def measure(self, model):
        """Tokens per second by the name of the test."""
        rows = rows_of(self.command(model), self.options.timeout_s)
        speeds = speeds_of([(str(row.get("test")), row.get("tokens_per_s")) for row in rows], self.tests, self.name)
        self.isa = rows[0].get("isa")
        if self.options.peaks:
            bytes_per_s = positive(rows[0].get("read_gb_per_s"), self.name, "rate at which memory is read") * 1e9
            speeds[READ] = bytes_per_s / positive(rows[0].get("bytes"), self.name, "size of the model")
        return speeds

    def command(self, model):
        options = self.options
        lists = {"-p": options.n_prompt, "-n": options.n_gen, "-d": options.n_depth, "--widths": options.widths}
        numbers = [word for flag, list_ in lists.items() for word in (flag, joined(list_))]
        command = [options.verbatim, "bench", "-m", model, *numbers, "-r", str(options.repetitions)]
        command += ["--threads", str(options.threads), "--output", "json"]
        return [*command, *["--peaks"] * options.peaks, *options.verbatim_args]


def joined(numbers):
    """A list as the programs take it; a 0 stands for none."""
    return ",".join(map(str, numbers)) or "0"
