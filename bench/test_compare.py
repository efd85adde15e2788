"""Tests of bench/compare with programs that stand in for the others. Run: python3 -m unittest discover bench"""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

COMPARE = pathlib.Path(__file__).with_name("compare")

# Every program notes its runs in `calls`, a line for each. RUN is the number of its own.
COMMON = """
import json, os, pathlib, sys, time
me = pathlib.Path(sys.argv[0])
with me.with_name("calls").open("a") as calls:
    print(me.name, *sys.argv[1:], file=calls)
RUN = sum(line.split()[0] == me.name for line in me.with_name("calls").read_text().splitlines())
def numbers(flag): return [int(n) for n in sys.argv[sys.argv.index(flag) + 1].split(",") if int(n)] or []
def depths(flag="-d"): return [int(n) for n in sys.argv[sys.argv.index(flag) + 1].split(",")]
def at(work, depth): return f"{work}@d{depth}" if depth else work
"""
# Each run is faster than the one before. A step of w rows takes 1 + w/10 as long as one of none.
VERBATIM = """
if sys.argv[1] == "run":
    sys.exit(print(" there"))
rows = []
for d in depths():
    rows += [(at(f"pp{n}", d), 100.0 * RUN) for n in numbers("-p")]
    rows += [(at(f"tg{n}", d), 10.0) for n in numbers("-n")]
    rows += [(at(f"width{n}", d), n / (1 + n / 10)) for n in numbers("--widths")]
more = {"read_gb_per_s": 20.0} if "--peaks" in sys.argv else {}
print(json.dumps([{"test": t, "tokens_per_s": s, "isa": "avx2", "bytes": 1e9, **more} for t, s in rows]))
"""
# -fa 1 is better at generation and worse at prompts. A prompt of n tokens takes n s in widths (eight repetitions).
BENCH = """
assert sys.argv[sys.argv.index("-o") + 1] == "json", sys.argv
flash = "-fa" in sys.argv and sys.argv[sys.argv.index("-fa") + 1] == "1"
def row(p, n, d, ts): return {"n_prompt": p, "n_gen": n, "n_depth": d, "avg_ts": ts, "avg_ns": p * 1e9}
rows = []
for d in depths():
    rows += [row(n, 0, d, 40.0 if flash else 50.0) for n in numbers("-p")]
    rows += [row(0, n, d, 25.0 if flash else 20.0) for n in numbers("-n")]
print(json.dumps(rows))
"""
BATCHED = """
assert "-pps" in sys.argv and "-kvu" in sys.argv
print("some words")
for d in depths("-npp"):
    for n in numbers("-npl"):
        print(json.dumps({"pp": d, "pl": n, "speed_tg": 10.0 / (1 + n)  * n}))
"""
SERVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
began = time.monotonic()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.answer(200 if time.monotonic() - began > 0.1 else 503, {})
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.answer(200, {"tokens": [5, 6, 7]})
        assert ask["temperature"] == 0 and ask["ignore_eos"] is True and ask["cache_prompt"] is False
        steps = ask["n_predict"] - 1
        self.answer(200, {"timings": {"prompt_n": len(ask["prompt"]), "prompt_per_second": 30.0,
            "predicted_n": ask["n_predict"], "predicted_ms": max(steps, 0.01) * 1000 / 40}})
    def answer(self, status, value):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
# It does not end by itself, and says who it is.
HANGS = "me.with_name('hanging').write_text(str(os.getpid())); time.sleep(60)"


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "x.gguf"
        self.model.write_bytes(b"GGUF" * 100_000)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{COMMON}{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def command(self, *arguments, verbatim=VERBATIM, bench=BENCH, server=None):
        name, text = ("server", server) if server else ("bench", bench)
        programs = ["--verbatim", self.program("verbatim", verbatim), f"--llama-{name}", self.program(name, text)]
        return [COMPARE, *programs, "-m", self.model, "-p", "64", "-n", "8", *arguments]

    def compare(self, *arguments, **programs):
        return subprocess.run(self.command(*arguments, **programs), capture_output=True, text=True)

    def figures(self, *arguments, **programs):
        done = self.compare("--json", *arguments, **programs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def calls(self, start=""):
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(start)]

    def assert_ends(self, process):
        """A process that was told to end may need a moment."""
        for _ in range(500):
            if not pathlib.Path(f"/proc/{process}").exists():
                return
            time.sleep(0.01)
        self.fail(f"process {process} has been left behind")

    def test_medians_and_ratios_are_round_by_round(self):
        rows = {row["test"]: row for row in self.figures("--rounds", "3", "-d", "0,32")["speed"]}
        self.assertEqual(list(rows), ["pp64", "tg8", "pp64@d32", "tg8@d32"])
        prompt = rows["pp64"]
        self.assertEqual(prompt["tokens_per_s"]["verbatim"], {"median": 200.0, "samples": [100.0, 200.0, 300.0]})
        self.assertEqual(prompt["tokens_per_s"]["llama.cpp"]["median"], 50.0)
        self.assertEqual(prompt["ratio"], {"median": 4.0, "min": 2.0, "max": 6.0})
        self.assertEqual(rows["tg8@d32"]["ratio"]["median"], 0.5)

    def test_there_are_seven_rounds_in_turns_unless_asked_otherwise(self):
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("round 7 of 7", done.stderr)
        self.assertIn("| x.gguf | pp64 |       400.00 |         50.00 | 8.000 (2.000 to 14.000) |", done.stdout)
        self.assertEqual([line.split()[0] for line in self.calls()], ["verbatim", "bench"] * 7)

    def test_every_model_has_rows_of_its_own(self):
        other = self.folder / "folder"
        other.mkdir()
        (other / "y.gguf").write_bytes(b"GGUF")
        rows = self.figures("-m", other / "y.gguf", "-n", "0", "--rounds", "1")["speed"]
        self.assertEqual([(row["model"], row["test"]) for row in rows], [("x.gguf", "pp64"), ("y.gguf", "pp64")])
        (other / "x.gguf").write_bytes(b"GGUF")
        rows = self.figures("-m", other / "x.gguf", "-n", "0", "--rounds", "1")["speed"]
        self.assertEqual([row["model"] for row in rows], [str(self.model), str(other / "x.gguf")])

    def test_the_ratio_is_to_the_better_variant_of_each_test(self):
        variants = ["--llama-variant", "plain: -fa 0", "--llama-variant", "flash: -fa 1"]
        rows = {row["test"]: row for row in self.figures("--rounds", "1", *variants)["speed"]}
        self.assertEqual((rows["pp64"]["better"], rows["pp64"]["ratio"]["median"]), ("llama.cpp plain", 2.0))
        self.assertEqual((rows["tg8"]["better"], rows["tg8"]["ratio"]["median"]), ("llama.cpp flash", 0.4))
        self.assertEqual(rows["tg8"]["tokens_per_s"]["llama.cpp plain"]["median"], 20.0)
        done = self.compare("--rounds", "1", *variants)
        self.assertIn("**25.00**", done.stdout)
        self.assertIn("- llama.cpp flash: -fa 1", done.stdout)

    def test_widths_cost_what_they_take_over_one_row(self):
        figures = self.figures("--rounds", "2", "--widths", "2,4", "-d", "0,32", "-p", "0", "-n", "0")
        costs = {row["test"]: {side: cost["median"] for side, cost in row["cost"].items()} for row in figures["widths"]}
        self.assertEqual(list(costs), ["width1", "width2", "width4", "width1@d32", "width2@d32", "width4@d32"])
        self.assertAlmostEqual(costs["width4"]["verbatim"], 1.4 / 1.1)
        self.assertAlmostEqual(costs["width4@d32"]["llama.cpp"], 4.0)
        self.assertEqual(figures["speed"], [])
        self.assertIn("only the last wants logits", " ".join(figures["notes"]))
        self.assertTrue(all("-r 8" in call for call in self.calls("bench")))

    def test_widths_can_have_all_logits_by_llama_batched_bench(self):
        batched = ["--llama-batched-bench", self.program("batched", BATCHED)]
        figures = self.figures("--rounds", "1", "--widths", "1,4", "-d", "0,32", *batched)
        costs = {row["test"]: row["cost"]["llama.cpp"]["median"] for row in figures["widths"]}
        self.assertEqual(costs["width4@d32"], 2.5)
        self.assertEqual(costs["width4"], 2.5)
        self.assertIn("all rows want logits", " ".join(figures["notes"]))

    def test_the_share_of_the_read_rate(self):
        rows = self.figures("--rounds", "1", "--peaks")["bandwidth"]
        self.assertEqual([row["test"] for row in rows], ["tg8"])
        medians = {side: share["median"] for side, share in rows[0]["share"].items()}
        self.assertEqual(medians, {"verbatim": 0.5, "llama.cpp": 1.0})

    def test_what_is_kept_beside_busy_processes(self):
        # Slower whenever its parent has other children, which are the busy processes.
        look = "import subprocess\nsiblings = subprocess.check_output(['pgrep', '-cP', str(os.getppid())])\n"
        slowed = look + VERBATIM.replace('"tokens_per_s": s', '"tokens_per_s": s / (4 if int(siblings) > 1 else 1)')
        figures = self.figures("--rounds", "2", "--busy", "2", "-p", "0", verbatim=slowed)
        (row,) = figures["kept"]
        self.assertEqual((row["test"], row["busy"], row["kept"]["verbatim"]["median"]), ("tg8", 2, 0.25))
        self.assertEqual(row["kept"]["llama.cpp"]["median"], 1.0)
        self.assertEqual([row["busy"] for row in figures["speed"]], [0, 2])

    def busy_processes(self, parent):
        found = subprocess.run(["pgrep", "-P", str(parent), "-f", "spinning"], capture_output=True, text=True)
        return found.stdout.split()

    def hanging(self, *arguments, **programs):
        """A run in which a program hangs, and that program."""
        process = subprocess.Popen(self.command(*arguments, **programs), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        mark = self.folder / "hanging"
        for _ in range(1000):
            if mark.exists() and mark.read_text():
                return process, mark.read_text()
            time.sleep(0.01)
        process.kill()
        self.fail("the program has not started")

    def test_nothing_is_left_when_it_is_interrupted(self):
        hangs_when_busy = "if RUN > 1:\n    " + HANGS + "\n" + VERBATIM
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            process, hanging = self.hanging("--busy", "2", verbatim=hangs_when_busy)
            busy = self.busy_processes(process.pid)
            self.assertEqual(len(busy), 2)
            process.send_signal(number)
            errors = process.communicate(timeout=20)[1]
            for left in busy:
                self.assert_ends(left)
            if number == signal.SIGKILL:  # it could not end what it measured
                os.kill(int(hanging), signal.SIGKILL)
            else:
                self.assert_ends(hanging)
                self.assertEqual(process.returncode, 130)
                self.assertTrue(errors.endswith(b"\ninterrupted\n"), errors)
            for name in ("hanging", "calls"):
                (self.folder / name).unlink()

    def test_nothing_is_left_when_a_program_fails_beside_busy_processes(self):
        fails = "if RUN > 1:\n    sys.exit('out of luck')\n" + VERBATIM
        process = subprocess.Popen(self.command("--busy", "2", verbatim=fails), stderr=subprocess.PIPE, text=True)
        self.assertIn("out of luck", process.communicate(timeout=20)[1])
        self.assertEqual((process.returncode, self.busy_processes(process.pid)), (2, []))

    def test_llama_server_is_measured_from_end_to_end(self):
        figures = self.figures("--rounds", "2", "-d", "0,32", "--widths", "2", "--llama-args=-fa 1", server=SERVER)
        rows = {row["test"]: row for row in figures["speed"]}
        medians = {test: row["tokens_per_s"].get("llama.cpp", {}).get("median") for test, row in rows.items()}
        self.assertEqual(medians, {"pp64": 30.0, "tg8": 40.0, "pp64@d32": None, "tg8@d32": 40.0})
        self.assertIsNone(rows["pp64@d32"]["ratio"])
        self.assertEqual([line.split()[0] for line in self.calls()], ["verbatim", "server"] * 2)
        self.assertTrue(all(call.endswith("-fa 1") for call in self.calls("server")))
        row = self.compare("--rounds", "1", "-d", "32", server=SERVER).stdout.splitlines()[2]
        self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]], ["x.gguf", "pp64@d32", "300.00", "–", "–"])

    def test_llama_server_is_not_asked_for_what_it_cannot_do(self):
        figures = self.figures("--rounds", "1", "-d", "32", "-n", "0", "--widths", "2", server=SERVER)
        self.assertEqual([row["better"] for row in figures["speed"]], [None])
        self.assertEqual([list(row["cost"]) for row in figures["widths"]], [["verbatim"], ["verbatim"]])
        self.assertEqual(self.calls("server"), [])

    def test_llama_server_is_ended(self):
        process, server = self.hanging(server=SERVER.replace("assert", f"{HANGS}\n        assert"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assert_ends(server)

    def test_loading_is_set_against_reading(self):
        figures = self.figures("--rounds", "2", "--load", "-p", "0", "-n", "0", server=SERVER)
        rows = {row["state"]: row for row in figures["loading"]}
        self.assertEqual(set(rows["warm"]["seconds"]), {"read", "verbatim", "llama.cpp"})
        self.assertGreater(rows["warm"]["ratio"]["min"], 0)
        self.assertGreater(rows["warm"]["over_read"]["verbatim"]["min"], 1)
        # Not every file system can be made cold.
        self.assertNotEqual("cold" in rows, "cannot be dropped" in " ".join(figures["notes"]))
        self.assertTrue(all("--no-warmup" in call for call in self.calls("server")))
        done = self.compare("--rounds", "1", "--load", "-p", "0", "-n", "0")
        self.assertIn("loading of llama.cpp is not measured", done.stdout)

    def rejected(self, words, *arguments, **programs):
        done = self.compare(*arguments, **programs)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        said = [line for line in done.stderr.splitlines() if not line.startswith("round ")]
        self.assertTrue(said[0].startswith("error: "), done.stderr)
        self.assertIn(words, "\n".join(said))
        self.assertNotIn("Traceback", "\n".join(said[:1]))

    def test_what_is_asked_wrongly_is_rejected_in_a_line(self):
        self.rejected("-m nowhere.gguf: there is no such file", "-m", "nowhere.gguf")
        self.rejected("there is no such file", "-m", self.folder)
        self.rejected("a model is given twice", "-m", self.model)
        self.rejected("--llama-bench nowhere: there is no such program", "--llama-bench", "nowhere")
        self.rejected("--verbatim nowhere: there is no such program", "--verbatim", "nowhere")
        self.rejected("name one", "--llama-server", self.folder / "bench")
        self.rejected("nothing to measure", "-p", "0", "-n", "0")
        self.rejected("'0' is not a number of at least 1", "--rounds", "0")
        self.rejected("'-1' is not a number from 0 to 1024", "--busy", "-1")
        self.rejected("'2,x' is not a list of numbers", "-d", "2,x")
        self.rejected("not of the form 'name: arguments'", "--llama-variant", "-fa 1")
        self.rejected("two have the same name", "--llama-variant", "a: -fa 1", "--llama-variant", "a: -fa 0")
        self.rejected("No closing quotation", "--llama-args", "'")

    def test_what_goes_wrong_is_said(self):
        fails = "print('no such model', file=sys.stderr); sys.exit(3)"
        self.rejected("ended with status 3\nno such model", bench=fails)
        self.rejected("was killed by signal 4 (Illegal instruction)", bench="os.kill(os.getpid(), 4)")
        self.rejected("printed no JSON", bench="print('hello')")
        self.rejected("printed no list of rows", verbatim="print('{}')")
        self.rejected("llama.cpp gave no speed for pp64", bench="print('[]')")
        self.rejected("verbatim gave no speed for pp64", verbatim=VERBATIM.replace("100.0 * RUN", "'fast'"))
        self.rejected("two speeds for pp64", bench=BENCH.replace("dumps(rows)", "dumps(rows + rows)"))
        self.rejected("took longer than 1 s", "--timeout-s", "1", bench="time.sleep(30)")
        self.rejected("cannot be run", "--verbatim", self.not_a_program())
        self.rejected("printed nothing", "--load", verbatim="if sys.argv[1] == 'run': sys.exit()\n" + VERBATIM)

    def not_a_program(self):
        path = self.program("empty", "")
        path.write_text("#!/nowhere\n")
        return path

    def test_what_goes_wrong_with_a_server_is_said(self):
        silent = "print('some words', flush=True)\ntime.sleep(30)"
        self.rejected("ended with status 1\nno such model", server="sys.exit('no such model')")
        self.rejected("was not ready after 1 s\nsome words", "--timeout-s", "1", server=silent)
        self.rejected("/tokenize with no JSON", server=SERVER.replace("json.dumps(value)", "str(value)"))
        breaks_off = SERVER.replace("assert", "os._exit(1)\n        assert")
        self.rejected("broke off its answer to /completion", server=breaks_off)
        self.rejected("gave no tokens", server=SERVER.replace("[5, 6, 7]", "[]"))
        self.rejected("/completion with status 500", server=SERVER.replace('200, {"timings"', '500, {"timings"'))
        self.rejected("computed 1 of the 64 tokens", server=SERVER.replace('len(ask["prompt"])', "1"))


if __name__ == "__main__":
    unittest.main()
