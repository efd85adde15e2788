"""How figures are printed."""

import shlex

from .figures import OURS
from .loading import CONTEXT


def markdown(options, figures, notes):
    """Everything that was measured, as Markdown."""
    peers = [variant.name for variant in options.llama_variant]
    parts = [
        speed(figures["speed"], peers),
        shares("The time of a step of several rows over that of one row", figures["widths"], "cost", peers, number),
        shares("Speed kept beside busy processes, of the quiet speed", figures["kept"], "kept", peers, percent),
        shares("Share of the rate at which memory is read", figures["bandwidth"], "share", peers, percent),
        loading(figures["loading"], peers),
        "\n".join(f"- {note}" for note in notes),
    ]
    return "\n\n".join(part for part in parts if part)


def notes(options, sides, loading):
    """What one must know to read the figures."""
    isa = next((f"; verbatim computes with {side.isa}" for side in sides if side.name == OURS and side.isa), "")
    yield f"rounds in turns: {options.rounds}; threads: {options.threads}{isa}; medians, and ratios within rounds"
    yield "a ratio above 1: verbatim is faster; in brackets the smallest and the largest of a round"
    for variant in options.llama_variant:
        if variant.arguments or options.llama_args:
            yield f"{variant.name}: {shlex.join([*options.llama_args, *variant.arguments])}"
    if len(options.llama_variant) > 1:
        yield "the ratio is to the better median of llama.cpp's variants, in bold"
    if options.has_tests and options.llama_server:
        yield "llama-server takes requests and samples, verbatim bench does not"
        yield "prompts at a depth and widths cannot be asked of llama-server"
    if options.widths and options.llama_batched_bench:
        yield "widths of llama.cpp: so many sequences with one beginning go on by a row each; all rows want logits"
    elif options.widths and not options.llama_server:
        yield (
            "widths of llama.cpp: prompts of so many tokens, of which only the last wants logits; verbatim computes "
            "those of all rows, which is more work (--llama-batched-bench measures llama.cpp with all of them)"
        )
    if options.busy:
        yield f"busy: {options.busy} processes that do nothing but compute, each bound to a processor in turn"
    if options.peaks:
        yield "share of the read rate: the file's bytes times steps per second, over what --peaks measures"
    if options.load:
        yield from loading_notes(options, loading)


def loading_notes(options, loading):
    yield f"seconds from the start of the program to the first token after a short prompt, context {CONTEXT}"
    if options.llama_server:
        yield "llama-server is started without its warm-up, asked as soon as it is ready, and looked at every 10 ms"
    else:
        yield "loading of llama.cpp is not measured: llama-bench cannot, --llama-server can"
    if len(loading.never_cold) < len(options.model):
        yield "cold: the file was dropped from this system's cache; a host's or a disk's own cache may still hold it"
    for model in sorted(loading.never_cold):
        yield (
            f"{options.labels[model]} cannot be dropped from the system's cache: no cold start "
            "(another process may use the file, or the file system keeps it in memory)"
        )


def speed(rows, peers):
    lines = []
    for row in rows:
        found = row["tokens_per_s"]
        cells = [f"{found[side]['median']:.2f}" if side in found else "–" for side in [OURS, *peers]]
        if len(peers) > 1 and row["better"]:
            better = 1 + peers.index(row["better"])
            cells[better] = f"**{cells[better]}**"
        lines.append([row["model"], beside(row), *cells, number(row["ratio"]) if row["ratio"] else "–"])
    heads = ["model", "test", "verbatim t/s", *(f"{peer} t/s" for peer in peers), "ratio"]
    return table(heads, lines, 2)


def shares(title, rows, key, peers, form):
    sides = [OURS, *peers]
    lines = [
        [row["model"], beside(row), *(form(row[key][side]) if side in row[key] else "–" for side in sides)]
        for row in rows
    ]
    return f"{title}:\n\n{table(['model', 'test', *sides], lines, 2)}" if rows else ""


def loading(rows, peers):
    if not rows:
        return ""
    lines = []
    for row in rows:
        seconds, over = row["seconds"], row["over_read"]
        cells = [f"{seconds[side]['median']:.3f}" if side in seconds else "–" for side in ["read", OURS, *peers]]
        ratio = number(row["ratio"]) if row["ratio"] else "–"
        lines.append([row["model"], row["state"], *cells, number(over[OURS]), ratio])
    heads = ["model", "file", "reading s", "verbatim s", *(f"{peer} s" for peer in peers)]
    return f"Time to the first token:\n\n{table([*heads, 'verbatim / reading', 'ratio'], lines, 2)}"


def beside(row):
    return f"{row['test']}, {row['busy']} busy" if row.get("busy") else row["test"]


def number(spread):
    return "{median:.3f} ({min:.3f} to {max:.3f})".format(**spread)


def percent(spread):
    return "{median:.1%} ({min:.1%} to {max:.1%})".format(**spread)


def table(heads, lines, words):
    """A table; so many columns at the left are words, the others numbers."""
    if not lines:
        return ""
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    rule = [":" + "-" * (width - 1) if i < words else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def drawn(cells):
        sized = enumerate(zip(cells, widths))
        padded = [cell.ljust(width) if i < words else cell.rjust(width) for i, (cell, width) in sized]
        return f"| {' | '.join(padded)} |"

    return "\n".join(map(drawn, [heads, rule, *lines]))
