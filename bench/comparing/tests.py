"""What tests are called: as llama-bench and `verbatim bench` call them."""


def name(work, depth):
    return f"{work}@d{depth}" if depth else work


def speeds(options):
    """The tests of which tokens per second are compared, in the order in which they are printed."""
    works = [f"pp{tokens}" for tokens in options.n_prompt] + [f"tg{tokens}" for tokens in options.n_gen]
    return [name(work, depth) for depth in options.n_depth for work in works]


def width(rows, depth):
    return name(f"width{rows}", depth)


def widths(options):
    return [width(rows, depth) for depth in options.n_depth for rows in options.widths]
