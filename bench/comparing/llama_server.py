"""llama.cpp's speeds through llama-server: from the request to the answer, sampling and all."""

import contextlib
import http.client
import itertools
import json
import pathlib
import shlex
import socket
import statistics
import tempfile
import time

from . import tests
from .programs import Failure, ended_badly, last_lines, positive, running, speeds_of

TEXT = pathlib.Path(__file__).parent.parent / "text.txt"
POLL_S = 0.01
# Room beside the tokens of a test.
CONTEXT_SPARE = 64


class LlamaServer:
    """llama-server run in one way, as a side that takes its turn."""

    def __init__(self, options, variant):
        self.options = options
        self.name = variant.name
        self.arguments = [*options.llama_args, *variant.arguments]
        self.works = works(options)
        self.tests = list(self.works)

    def measure(self, model):
        """Tokens per second by the name of the test."""
        if not self.works:
            return {}
        longest = max(prompt + steps for prompt, steps in self.works.values())
        with self.serving(model, longest + CONTEXT_SPARE) as server:
            text = server.tokens(longest)
            # The longest prompt and a step warm it up.
            server.complete(text[: max(prompt for prompt, _ in self.works.values())], 2)
            speeds = [(test, self.speed(server, text, *work)) for test, work in self.works.items()]
        return speeds_of(speeds, self.tests, self.name)

    def speed(self, server, text, prompt, steps):
        """The median of the repetitions."""
        prompt = text[:prompt]
        once = (lambda: server.generation_speed(prompt, steps)) if steps else (lambda: server.prompt_speed(prompt))
        return statistics.median(once() for _ in range(self.options.repetitions))

    @contextlib.contextmanager
    def serving(self, model, context, *more):
        """A Server that answers, until the end of the block."""
        port = free_port()
        command = [self.options.llama_server, "-m", model, "-t", str(self.options.threads), "-c", str(context)]
        command += ["-np", "1", "--host", "127.0.0.1", "--port", str(port), *more, *self.arguments]
        with tempfile.TemporaryFile() as log, running(command, stdout=log, stderr=log) as process:
            server = Server(command, port, process, log, self.options.timeout_s)
            server.wait_until_ready()
            yield server

    def first_token_s(self, model, prompt, context):
        """Seconds from the start of the program to its first token."""
        start = time.perf_counter()
        with self.serving(model, context, "--no-warmup") as server:
            server.complete(prompt, 1)
            return time.perf_counter() - start


class Server:
    """A llama-server that has been started."""

    def __init__(self, command, port, process, log, timeout_s):
        self.command, self.port, self.process, self.log, self.timeout_s = command, port, process, log, timeout_s

    def wait_until_ready(self):
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ended_badly(self.command, self.process.returncode, self.said())
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(POLL_S)
        raise self.failed(f"was not ready after {self.timeout_s} s")

    def prompt_speed(self, prompt):
        timings = self.complete(prompt, 1)
        if timings.get("prompt_n") != len(prompt):
            raise self.failed(f"computed {timings.get('prompt_n')} of the {len(prompt)} tokens of a prompt")
        return positive(timings.get("prompt_per_second"), self.command[0], "speed of the prompt")

    def generation_speed(self, prompt, steps):
        # The first token belongs to the prompt: the server's clock starts after it, its count does not.
        timings = self.complete(prompt, steps + 1)
        if timings.get("predicted_n") != steps + 1:
            raise self.failed(f"generated {timings.get('predicted_n')} tokens in place of {steps + 1}")
        return steps * 1e3 / positive(timings.get("predicted_ms"), self.command[0], "time of the generation")

    def complete(self, prompt, count):
        """The timings of an answer of so many tokens."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        timings = self.ask("/completion", body).get("timings")
        if not isinstance(timings, dict):
            raise self.failed("gave no timings")
        return timings

    def tokens(self, count):
        """So many tokens of a text."""
        tokens = self.ask("/tokenize", {"content": TEXT.read_text(encoding="utf-8")}).get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise self.failed("gave no tokens")
        return (tokens * (count // len(tokens) + 1))[:count]

    def ask(self, path, body):
        try:
            status, text = self.request("POST", path, json.dumps(body))
            answer = json.loads(text)
        except TimeoutError as error:
            raise self.failed(f"gave no answer to {path} in {self.timeout_s} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise self.failed(f"broke off its answer to {path}") from error
        except ValueError as error:
            raise self.failed(f"answered {path} with no JSON: {text[:200]!r}") from error
        if status != 200 or not isinstance(answer, dict):
            raise self.failed(f"answered {path} with status {status}: {text[:200]!r}")
        return answer

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")

    def failed(self, what):
        return Failure("\n".join([f"{shlex.join(self.command)} {what}", *last_lines(self.said())]))

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


def works(options):
    """By the name of a test: tokens of the prompt, and steps after it. Without steps the prompt is timed."""
    # Prompts at a depth are left out: they would need the cache that must not be used.
    prompts = options.n_prompt if 0 in options.n_depth else []
    generations = itertools.product(options.n_depth, options.n_gen)
    return {f"pp{tokens}": (tokens, 0) for tokens in prompts} | {
        tests.name(f"tg{steps}", depth): (max(depth, 1), steps) for depth, steps in generations
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
