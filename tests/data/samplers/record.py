"""Records what llama.cpp's samplers make of a fixed set of logit vectors.

    pip install llama-cpp-py-sync==0.11739
    python3 record.py OUTPUT_FOLDER

The package carries llama.cpp's own library (build b11739) with cffi bindings to its C API; its Linux wheel needs glibc 2.38 or
later. No model is needed. The vectors come from a seeded generator, so a second run writes the same files.

OUTPUT_FOLDER gets two files of JSON lines (floats are the bits of their f32 as an integer):
- vectors.jsonl, a line for each vector: {"logits_bits": [...], "history": [...]}. The id of a token is its place in the vector;
  the history is given to the samplers through llama_sampler_accept, oldest token first.
- results.jsonl, a line for each setting: {"name": ..., "samplers": [...], "kept": [...]}. `kept` has for each vector the
  candidates that are left, as [id, bits of the final logit] in order of id, without those whose logit is -inf. It is null
  where the outcome hangs on rounding or on the order of equal elements, see `record`.
"""

import json
import math
import random
import struct
import sys
from pathlib import Path

from llama_cpp_py_sync import _cffi_bindings

ffi = _cffi_bindings.get_ffi()
lib = _cffi_bindings.get_lib()

SEED = 20261201
NUDGE = 1e-5


# ---- vectors -------------------------------------------------------------------------------------------------------------


def to_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def make_history(rng, size, length):
    """Tokens drawn from a few, with earlier stretches copied in between and, mostly, again at the end, so that there are
    repeated tokens for the penalties and repeated sequences for DRY."""
    few = [rng.randrange(size) for _ in range(max(4, min(30, size // 2)))]
    history = []
    while len(history) < length:
        if len(history) > 6 and rng.random() < 0.35:
            start = rng.randrange(len(history) - 4)
            history += history[start : start + rng.randint(2, 9)]
        else:
            history += [rng.choice(few) for _ in range(rng.randint(1, 5))]
    history = history[:length]
    copied = rng.randint(1, 10)
    if length > 3 * copied and rng.random() < 0.8:
        start = rng.randrange(length - 2 * copied)
        history[length - copied :] = history[start : start + copied]
    return history


def make_vectors():
    """50 pairs of logits and history."""
    rng = random.Random(SEED)
    sizes = [8, 9, 12, 16, 17, 20, 24, 30, 32, 40, 41, 48, 50, 60, 64, 72, 80, 96, 100, 120, 128, 129, 150, 180, 200]
    large = {7: 600, 19: 513, 31: 400, 43: 300}
    lengths = [0, 1, 2, 3, 7, 8, 9, 16, 24, 33, 48, 63, 64, 65, 80, 99, 100]
    vectors = []
    for index in range(50):
        size = large.get(index, sizes[(index * 7) % len(sizes)])
        deviation = (1.0, 3.0, 8.0)[index % 3]
        centre = (0.0, 0.0, -4.0, 6.0)[index % 4]
        logits = [rng.gauss(centre, deviation) for _ in range(size)]
        if index % 10 == 4:  # one or two tokens far above the others
            for token in rng.sample(range(size), rng.randint(1, 2)):
                logits[token] = max(logits) + rng.uniform(3.0, 9.0)
        if index % 10 == 6:  # a mask, as a grammar would leave it
            for token in rng.sample(range(size), rng.randint(1, size // 2)):
                logits[token] = -math.inf
        if index % 10 == 8:  # an exact tie
            first, second = rng.sample(range(size), 2)
            logits[first] = logits[second]
        if index % 10 == 1:  # zero, the edge between the penalties' two cases
            logits[rng.randrange(size)] = 0.0
        history = make_history(rng, size, lengths[(index * 5) % len(lengths)])
        if 0.0 in logits and history:
            history[len(history) // 2] = logits.index(0.0)
        vectors.append(([to_f32(value) for value in logits], history))
    return vectors


# ---- settings ------------------------------------------------------------------------------------------------------------


def logit_bias(**bias):
    return {"kind": "logit_bias", "bias": [[int(token[1:]), value] for token, value in bias.items()]}


def penalties(last_n=64, repeat=1.0, frequency=0.0, presence=0.0):
    return {"kind": "penalties", "last_n": last_n, "repeat": repeat, "frequency": frequency, "presence": presence}


def dry(multiplier=0.8, base=1.75, allowed_length=2, last_n=64):
    return {"kind": "dry", "multiplier": multiplier, "base": base, "allowed_length": allowed_length, "last_n": last_n}


def top_n_sigma(n):
    return {"kind": "top_n_sigma", "n": n}


def top_k(k):
    return {"kind": "top_k", "k": k}


def typical(p, min_keep=0):
    return {"kind": "typical", "p": p, "min_keep": min_keep}


def top_p(p, min_keep=0):
    return {"kind": "top_p", "p": p, "min_keep": min_keep}


def min_p(p, min_keep=0):
    return {"kind": "min_p", "p": p, "min_keep": min_keep}


def xtc(probability, threshold, min_keep=0):
    return {"kind": "xtc", "probability": probability, "threshold": threshold, "min_keep": min_keep}


def temperature(t):
    return {"kind": "temperature", "t": t}


def dynamic_temperature(t, spread, exponent):
    return {"kind": "dynamic_temperature", "t": t, "range": spread, "exponent": exponent}


def mirostat_v2(tau, eta):
    return {"kind": "mirostat_v2", "tau": tau, "eta": eta}


def adaptive_p(target, decay):
    return {"kind": "adaptive_p", "target": target, "decay": decay}


BIAS = logit_bias(t0=2.5, t2=-1.0, t5=0.7, t7=-100.0)

SETTINGS = {
    # One sampler each.
    "logit_bias": [BIAS],
    "penalties_repeat": [penalties(repeat=1.1)],
    "penalties_repeat_last_8": [penalties(last_n=8, repeat=1.3)],
    "penalties_last_0": [penalties(last_n=0, repeat=1.3, frequency=0.5, presence=0.5)],
    "penalties_frequency_presence": [penalties(frequency=0.25, presence=0.6)],
    "penalties_all_last_8": [penalties(last_n=8, repeat=1.2, frequency=0.25, presence=0.6)],
    "penalties_all": [penalties(repeat=1.2, frequency=0.1, presence=0.4)],
    "penalties_rewarding": [penalties(repeat=0.9, frequency=-0.2, presence=-0.1)],
    "dry": [dry()],
    "dry_last_16": [dry(last_n=16)],
    "dry_long": [dry(multiplier=0.5, base=1.3, allowed_length=1, last_n=1024)],
    "top_n_sigma": [top_n_sigma(1.0)],
    "top_k_10": [top_k(10)],
    "top_k_200": [top_k(200)],
    "typical": [typical(0.7)],
    "typical_keep_3": [typical(0.2, min_keep=3)],
    "top_p": [top_p(0.9)],
    "top_p_keep_3": [top_p(0.3, min_keep=3)],
    "min_p": [min_p(0.1)],
    "min_p_keep_3": [min_p(0.5, min_keep=3)],
    "xtc": [xtc(1.0, 0.1)],
    "xtc_low_keep_3": [xtc(1.0, 0.02, min_keep=3)],
    "temperature": [temperature(0.7)],
    "temperature_0": [temperature(0.0)],
    "dynamic_temperature": [dynamic_temperature(0.8, 0.5, 1.3)],
    "dynamic_temperature_to_0": [dynamic_temperature(0.5, 0.7, 0.6)],
    "mirostat_v2": [mirostat_v2(3.0, 0.1)],
    "mirostat_v2_low": [mirostat_v2(1.0, 0.1)],
    "adaptive_p": [adaptive_p(0.5, 0.9)],
    "adaptive_p_low": [adaptive_p(0.1, 0.5)],
    # Chains in llama.cpp's order: penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
    "defaults": [
        penalties(),
        dry(multiplier=0.0),
        top_n_sigma(-1.0),
        top_k(40),
        typical(1.0),
        top_p(0.95),
        min_p(0.05),
        xtc(0.0, 0.1),
        dynamic_temperature(0.8, 0.0, 1.0),
    ],
    "defaults_keep_3": [
        penalties(),
        dry(multiplier=0.0),
        top_n_sigma(-1.0),
        top_k(40),
        typical(1.0, min_keep=3),
        top_p(0.5, min_keep=3),
        min_p(0.3, min_keep=3),
        xtc(0.0, 0.1, min_keep=3),
        dynamic_temperature(0.8, 0.0, 1.0),
    ],
    "all_in_order": [
        logit_bias(t0=2.5, t2=-1.0, t5=0.7, t7=-3.0),
        penalties(repeat=1.1, frequency=0.1, presence=0.1),
        dry(),
        top_k(60),
        typical(0.95),
        top_p(0.97),
        min_p(0.01),
        xtc(1.0, 0.2),
        dynamic_temperature(0.9, 0.3, 1.0),
    ],
    "penalties_to_sigma": [
        penalties(repeat=1.15),
        dry(last_n=32),
        top_n_sigma(1.5),
        top_k(20),
        top_p(0.9),
        min_p(0.02),
        temperature(1.3),
    ],
    # Chains in other orders.
    "temperature_first": [temperature(1.5), top_k(30), top_p(0.9), min_p(0.05)],
    "top_p_before_top_k": [top_p(0.8), top_k(5), temperature(0.6)],
    "min_p_before_top_p": [min_p(0.02), top_p(0.85), temperature(0.8)],
    "truncated_then_penalties": [top_k(20), penalties(repeat=1.5, presence=1.0), top_p(0.9), temperature(0.9)],
    "truncated_then_dry": [min_p(0.001), dry(), top_k(12), temperature(0.9)],
    "bias_first": [BIAS, top_p(0.95), top_k(25), min_p(0.02)],
    "typical_then_min_p": [typical(0.9), min_p(0.1), temperature(0.8)],
    "sigma_after_top_k": [top_k(25), top_n_sigma(1.0), temperature(0.8)],
    "sigma_hot": [temperature(2.0), top_n_sigma(1.0), top_p(0.98)],
    "xtc_after_temperature": [temperature(1.4), xtc(1.0, 0.1), min_p(0.05)],
    "xtc_keep_3": [top_k(15), xtc(1.0, 0.05, min_keep=3), temperature(0.8)],
    "dynamic_temperature_then_top_p": [dynamic_temperature(1.0, 0.6, 0.8), top_p(0.9)],
    "temperature_mirostat_v2": [temperature(0.8), mirostat_v2(2.0, 0.1)],
    "min_p_adaptive_p": [min_p(0.05), adaptive_p(0.4, 0.9)],
}

# What decides which candidates stay, by kind of sampler.
THRESHOLDS = {
    "top_n_sigma": "n",
    "typical": "p",
    "top_p": "p",
    "min_p": "p",
    "xtc": "threshold",
    "mirostat_v2": "tau",
}


def init(sampler, n_vocab):
    """llama.cpp's sampler for one entry of a setting."""
    s = sampler
    kind = s["kind"]
    if kind == "logit_bias":
        return lib.llama_sampler_init_logit_bias(n_vocab, len(s["bias"]), ffi.new("llama_logit_bias[]", s["bias"]))
    if kind == "penalties":
        return lib.llama_sampler_init_penalties(n_vocab, s["last_n"], s["repeat"], s["frequency"], s["presence"])
    if kind == "dry":
        # The vocabulary serves to find sequence breakers only, and there are none.
        return lib.llama_sampler_init_dry(
            ffi.NULL, s["multiplier"], s["base"], s["allowed_length"], s["last_n"], ffi.NULL, 0
        )
    if kind == "top_n_sigma":
        return lib.llama_sampler_init_top_n_sigma(s["n"])
    if kind == "top_k":
        return lib.llama_sampler_init_top_k(s["k"])
    if kind == "typical":
        return lib.llama_sampler_init_typical(s["p"], s["min_keep"])
    if kind == "top_p":
        return lib.llama_sampler_init_top_p(s["p"], s["min_keep"])
    if kind == "min_p":
        return lib.llama_sampler_init_min_p(s["p"], s["min_keep"])
    if kind == "xtc":
        return lib.llama_sampler_init_xtc(s["probability"], s["threshold"], s["min_keep"], SEED)
    if kind == "temperature":
        return lib.llama_sampler_init_temp(s["t"])
    if kind == "dynamic_temperature":
        return lib.llama_sampler_init_temp_ext(s["t"], s["range"], s["exponent"])
    if kind == "mirostat_v2":
        return lib.llama_sampler_init_mirostat_v2(SEED, s["tau"], s["eta"])
    if kind == "adaptive_p":
        return lib.llama_sampler_init_adaptive_p(s["target"], s["decay"], SEED)
    raise ValueError(kind)


# ---- recording -----------------------------------------------------------------------------------------------------------


class Undefined(Exception):
    """The samplers' own arithmetic has no defined outcome."""


def apply(samplers, logits, history, order=None):
    """The candidates that the samplers leave, as {id: logit}. `order` has the ids as they are to stand in the array."""
    order = order or range(len(logits))
    data = ffi.new("llama_token_data[]", [(token, logits[token], 0.0) for token in order])
    array = ffi.new("llama_token_data_array *", {"data": data, "size": len(logits), "selected": -1, "sorted": False})
    for sampler in samplers:
        if sampler["kind"] == "typical" and sampler["p"] < 1.0:
            # A probability of zero makes the entropy NaN.
            present = [array.data[i].logit for i in range(array.size)]
            if min(present) < max(present) - 100.0:
                raise Undefined
        handle = init(sampler, len(logits))
        for token in history:
            lib.llama_sampler_accept(handle, token)
        lib.llama_sampler_apply(handle, array)
        lib.llama_sampler_free(handle)
    kept = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    return {token: logit for token, logit in kept.items() if logit != -math.inf}


def nudged(samplers):
    """The same samplers with one threshold a little lower or higher."""
    for index, sampler in enumerate(samplers):
        key = THRESHOLDS.get(sampler["kind"])
        if key:
            for factor in (1.0 - NUDGE, 1.0 + NUDGE):
                value = sampler[key] * factor
                if (sampler[key] < 1.0) == (value < 1.0) or key in ("n", "tau"):
                    yield samplers[:index] + [{**sampler, key: value}] + samplers[index + 1 :]


def other_orders(logits):
    """The ids backwards, and with those of equal logits in each other's places."""
    ids = list(range(len(logits)))
    yield ids[::-1]
    by_logit = sorted(ids, key=lambda token: logits[token])
    for first, second in zip(by_logit, by_logit[1:]):
        if logits[first] == logits[second] != -math.inf:
            ids[first], ids[second] = ids[second], ids[first]
    yield ids


def record(samplers, logits, history):
    """What is left of one vector, or None if that is too close to call: other candidates would stay with a threshold moved
    by one part in 100,000, or with the candidates given in another order."""
    try:
        kept = apply(samplers, logits, history)
        others = [apply(samplers, logits, history, order) for order in other_orders(logits)]
        others += [apply(changed, logits, history) for changed in nudged(samplers)]
    except Undefined:
        return None
    if any(other.keys() != kept.keys() for other in others):
        return None
    return [[token, bits(kept[token])] for token in sorted(kept)]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vectors = make_vectors()

    def write(name, rows):
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")

    write(
        "vectors.jsonl",
        ({"logits_bits": [bits(value) for value in logits], "history": history} for logits, history in vectors),
    )
    write(
        "results.jsonl",
        (
            {"name": name, "samplers": samplers, "kept": [record(samplers, *vector) for vector in vectors]}
            for name, samplers in SETTINGS.items()
        ),
    )


if __name__ == "__main__":
    main()
