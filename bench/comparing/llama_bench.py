"""llama.cpp's speeds by llama-bench, and of several rows by llama-batched-bench."""

import json

from . import tests
from .programs import Failure, output_of, rows_of, speeds_of
from .verbatim import joined

# A step of few rows is short; a sample of `verbatim bench` is the mean of as many.
STEPS_PER_SAMPLE = 8


class LlamaBench:
    """llama.cpp run in one way, as a side that takes its turn."""

    def __init__(self, options, variant):
        self.options = options
        self.name = variant.name
        self.arguments = [*options.llama_args, *variant.arguments]
        self.tests = tests.speeds(options) + tests.widths(options)

    def measure(self, model):
        """Tokens per second by the name of the test."""
        options = self.options
        speeds = {}
        if options.n_prompt or options.n_gen:
            rows = self.bench(model, options.n_prompt, options.n_gen, options.repetitions)
            speeds |= speeds_of([(test_of(row), row.get("avg_ts")) for row in rows], tests.speeds(options), self.name)
        if options.widths:
            widths = self.batched_steps(model) if options.llama_batched_bench else self.short_prompts(model)
            speeds |= speeds_of(widths, tests.widths(options), self.name)
        return speeds

    def bench(self, model, prompts, generations, repetitions):
        options = self.options
        command = [options.llama_bench, "-m", model, "-p", joined(prompts), "-n", joined(generations)]
        command += ["-d", joined(options.n_depth), "-r", str(repetitions), "-t", str(options.threads), "-o", "json"]
        return rows_of([*command, *self.arguments], options.timeout_s)

    def short_prompts(self, model):
        """Steps of several rows, of which only the last wants logits, since llama-bench has no other ones."""
        repetitions = STEPS_PER_SAMPLE * self.options.repetitions
        for row in self.bench(model, self.options.widths, [], repetitions):
            rows, depth, mean_ns = row.get("n_prompt"), row.get("n_depth", 0), row.get("avg_ns")
            if isinstance(rows, int) and isinstance(mean_ns, (int, float)) and mean_ns > 0:
                yield tests.width(rows, depth), rows * 1e9 / mean_ns

    def batched_steps(self, model):
        """Steps in which several sequences with one common beginning go on by a row each; all rows want logits."""
        options = self.options
        steps = STEPS_PER_SAMPLE * options.repetitions
        # It must have a beginning to share.
        depths = {max(depth, 1): depth for depth in options.n_depth}
        context = max(depths) + max(options.widths) * (steps + 1)
        command = [options.llama_batched_bench, "-m", model, "-c", str(context), "-pps", "-kvu", "-npp", joined(depths)]
        command += ["-ntg", str(steps), "-npl", joined(options.widths), "-t", str(options.threads)]
        command += ["--output-format", "jsonl", *self.arguments]
        for line in output_of(command, options.timeout_s).splitlines():
            if not line.startswith("{"):
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise Failure(f"{command[0]} printed no JSON: {line[:200]!r}") from error
            yield tests.width(row.get("pl"), depths.get(row.get("pp"))), row.get("speed_tg")


def test_of(row):
    """The name of the test that a row of llama-bench tells of."""
    prompt, generated, depth = (row.get(key, 0) for key in ("n_prompt", "n_gen", "n_depth"))
    parts = [f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)
    return tests.name("+".join(parts), depth)
