"""Tests of bench/compare with programs that stand in for the two. Run: python3 -m unittest discover bench"""

import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).with_name("compare")

# Each run is faster than the one before: a program counts its runs in a file beside it.
VERBATIM = """
import json, pathlib, sys
runs = pathlib.Path(__file__).with_name("verbatim.runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
assert sys.argv[1] == "bench" and "--widths" in sys.argv, sys.argv
n = len(runs.read_text())
print(json.dumps([{"test": "pp64", "tokens_per_s": 100.0 * n}, {"test": "tg8@d32", "tokens_per_s": 9.0},
                  {"test": "pp64@d32", "tokens_per_s": 7.0}, {"test": "tg8", "tokens_per_s": 10.0}]))
"""
LLAMA = """
import json, sys
assert sys.argv[sys.argv.index("-o") + 1] == "json", sys.argv
def row(p, n, d, ts): return {"n_prompt": p, "n_gen": n, "n_depth": d, "avg_ts": ts}
print(json.dumps([row(64, 0, 0, 50.0), row(0, 8, 0, 20.0), row(64, 0, 32, 7.0), row(0, 8, 32, 18.0)]))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def compare(self, *arguments, verbatim=VERBATIM, llama=LLAMA):
        programs = ["--verbatim", self.program("verbatim", verbatim), "--llama-bench", self.program("llama", llama)]
        command = [COMPARE, *programs, "-m", "x.gguf", "-p", "64", "-n", "8", "-d", "0,32", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def test_medians_and_ratios_are_pair_by_pair(self):
        done = self.compare("--rounds", "3", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["test"]: row for row in json.loads(done.stdout)}
        self.assertEqual(list(rows), ["pp64", "tg8", "pp64@d32", "tg8@d32"])
        prompt = rows["pp64"]
        self.assertEqual(prompt["verbatim_samples"], [100.0, 200.0, 300.0])
        self.assertEqual((prompt["verbatim_tokens_per_s"], prompt["llama_tokens_per_s"]), (200.0, 50.0))
        self.assertEqual((prompt["ratio"], prompt["ratio_min"], prompt["ratio_max"]), (4.0, 2.0, 6.0))
        self.assertEqual(rows["tg8@d32"]["ratio"], 0.5)

    def test_there_are_seven_rounds_unless_asked_otherwise(self):
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("round 7 of 7", done.stderr)
        self.assertIn("| pp64 ", done.stdout)

    def refused(self, words, *arguments, **programs):
        done = self.compare(*arguments, **programs)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)

    def test_what_goes_wrong_is_said(self):
        self.refused("ended with status 3\nno such model", llama="import sys; sys.exit(print('no such model', file=sys.stderr) or 3)")
        self.refused("printed no JSON", llama="print('hello')")
        self.refused("printed no list of rows", verbatim="print('{}')")
        self.refused("llama-bench gave no speed for pp64", llama="print('[]')")
        self.refused("cannot be run", "--llama-bench", str(self.folder / "none"))
        self.refused("took longer than 1 s", "--timeout-s", "1", llama="import time; time.sleep(30)")
        self.refused("nothing to measure", "-p", "0", "-n", "0")
        self.refused("invalid at_least_one value", "--rounds", "0")


if __name__ == "__main__":
    unittest.main()
