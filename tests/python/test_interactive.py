"""Interactive use: errors at a prompt, and Ctrl-C while ranks run."""

import subprocess
import sys
import unittest


class Prompts(unittest.TestCase):
    def test_an_error_at_a_prompt_does_not_end_the_world(self):
        """An error at a prompt ends the statement, not the process."""
        for fails in ("", "1 / 0"):  # only at the prompt, or also in the program before it
            program = f"import dtensor; dtensor.barrier(); {fails}"
            lines = "1 / 0\ndtensor.barrier()\nprint('rank', dtensor.rank())\n"
            done = subprocess.run([sys.executable, "-i", "-c", program], input=lines, capture_output=True, text=True, timeout=60)
            self.assertIn("rank 0\n", done.stdout, done.stderr)


class Signals(unittest.TestCase):
    """Python runs signal handlers on the main thread, which called run()."""

    PROGRAM = """
import os, signal, threading, dtensor
received = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: received.set())

def on_rank():
    if dtensor.rank() == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        print("received", received.wait(60), flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        dtensor.barrier()  # waits for
    while True:  # one that comes to no collective
        pass

try:
    dtensor.run(2, on_rank)
except KeyboardInterrupt:
    print("interrupted", dtensor.run(2, dtensor.rank))
"""

    def test_handlers_run_while_ranks_run(self):
        done = subprocess.run([sys.executable, "-c", self.PROGRAM], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.stdout, done.returncode), ("received True\ninterrupted [0, 1]\n", 0), done.stderr)


if __name__ == "__main__":
    unittest.main()
