"""The turns that the sides take."""

import collections

from .busy import competing


class Samples:
    """One number of each round, by what was measured."""

    def __init__(self):
        self.lists = collections.defaultdict(list)

    def add(self, value, **what):
        self.lists[frozenset(what.items())].append(value)

    def forget(self, **what):
        self.lists.pop(frozenset(what.items()), None)

    def of(self, **what):
        """The samples in the order of the rounds; None if it was not measured."""
        return self.lists.get(frozenset(what.items()))


def loads(options):
    """Numbers of competing processes under which everything is measured."""
    return [0, options.busy] if options.busy else [0]


def measure(options, sides, say):
    """Tokens per second of every model, busy processes, side and test."""
    samples = Samples()
    for index in range(options.rounds):
        for model in options.model:
            for busy in loads(options):
                with competing(busy):
                    for side in sides:
                        beside = f" beside {busy} busy processes" if busy else ""
                        say(f"round {index + 1} of {options.rounds}: {options.labels[model]}, {side.name}{beside}")
                        for test, speed in side.measure(model).items():
                            samples.add(speed, model=model, busy=busy, side=side.name, test=test)
    return samples
