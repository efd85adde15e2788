"""Medians and ratios of the samples. Every ratio is taken within its round; what is given of them is their spread."""

import statistics

from . import tests
from .rounds import loads
from .verbatim import READ

OURS = "verbatim"


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(above, below):
    return [a / b for a, b in zip(above, below)]


def measured(samples):
    return {"median": statistics.median(samples), "samples": samples}


class Figures:
    """What a run has found. Every method gives rows, in the order in which they are printed."""

    def __init__(self, options, speeds, seconds):
        self.options, self.speeds, self.seconds = options, speeds, seconds
        self.peers = [variant.name for variant in options.llama_variant]

    def all(self):
        rows = {"speed": self.speed(), "widths": self.widths(), "kept": self.kept()}
        return rows | {"bandwidth": self.bandwidth(), "loading": self.loading()}

    def of_sides(self, **what):
        """The samples of every side that has some, Verbatim first."""
        found = {side: self.speeds.of(side=side, **what) for side in [OURS, *self.peers]}
        return {side: samples for side, samples in found.items() if samples}

    def speed(self):
        """Tokens per second, and Verbatim's over those of the peer with the better median."""
        rows = []
        for busy in loads(self.options):
            for model, test in self.tests(tests.speeds(self.options)):
                sides = self.of_sides(model=model, busy=busy, test=test)
                ours, peers = sides[OURS], {side: samples for side, samples in sides.items() if side != OURS}
                better = max(peers, key=lambda side: statistics.median(peers[side]), default=None)
                row = {"model": self.options.labels[model], "test": test, "busy": busy, "better": better}
                row["tokens_per_s"] = {side: measured(samples) for side, samples in sides.items()}
                row["ratio"] = spread(ratios(ours, peers[better])) if better else None
                rows.append(row)
        return rows

    def widths(self):
        """The time of a step of several rows over that of a step of one row."""
        rows = []
        for busy in loads(self.options):
            for model in self.options.model:
                for depth in self.options.n_depth:
                    one = self.of_sides(model=model, busy=busy, test=tests.width(1, depth))
                    for width in self.options.widths:
                        test = tests.width(width, depth)
                        sides = self.of_sides(model=model, busy=busy, test=test)
                        row = {"model": self.options.labels[model], "test": test, "busy": busy}
                        # Tokens per second are rows over the time of a step.
                        row["cost"] = {
                            side: spread([width * cost for cost in ratios(one[side], samples)])
                            for side, samples in sides.items()
                        }
                        row["tokens_per_s"] = {side: measured(samples) for side, samples in sides.items()}
                        rows.append(row)
        return rows

    def kept(self):
        """The share of the quiet speed that is left beside busy processes."""
        rows = []
        names = tests.speeds(self.options) + tests.widths(self.options)
        for model, test in self.tests(names) if self.options.busy else []:
            quiet = self.of_sides(model=model, busy=0, test=test)
            beside = self.of_sides(model=model, busy=self.options.busy, test=test)
            share = {side: spread(ratios(beside[side], samples)) for side, samples in quiet.items()}
            rows.append({"model": self.options.labels[model], "test": test, "busy": self.options.busy, "kept": share})
        return rows

    def bandwidth(self):
        """The size of the file times the steps per second, over the rate at which memory can be read."""
        rows = []
        generations = [test for test in tests.speeds(self.options) if test.startswith("tg")]
        for model, test in self.tests(generations) if self.options.peaks else []:
            read = self.speeds.of(model=model, busy=0, side=OURS, test=READ)
            sides = self.of_sides(model=model, busy=0, test=test)
            share = {side: spread(ratios(samples, read)) for side, samples in sides.items()}
            rows.append({"model": self.options.labels[model], "test": test, "share": share})
        return rows

    def loading(self):
        """Seconds to the first token, what they are over plain reading, and the better peer's over Verbatim's."""
        rows = []
        for model in self.options.model:
            for state in ("cold", "warm"):
                names = ["read", OURS, *self.peers]
                found = {side: self.seconds.of(model=model, state=state, side=side) for side in names}
                sides = {side: samples for side, samples in found.items() if samples}
                if not sides:
                    continue
                peers = [side for side in self.peers if side in sides]
                better = min(peers, key=lambda side: statistics.median(sides[side]), default=None)
                row = {"model": self.options.labels[model], "state": state, "better": better}
                row["seconds"] = {side: measured(samples) for side, samples in sides.items()}
                row["over_read"] = {
                    side: spread(ratios(samples, sides["read"])) for side, samples in sides.items() if side != "read"
                }
                row["ratio"] = spread(ratios(sides[better], sides[OURS])) if better else None
                rows.append(row)
        return rows

    def tests(self, names):
        return [(model, test) for model in self.options.model for test in names]
