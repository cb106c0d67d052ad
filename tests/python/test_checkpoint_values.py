"""What is no tensor in a state: every value comes back as it was, or is refused before anything is written."""

import os
import random
import tempfile
import unittest
from typing import NamedTuple

import torch

import dtensor


class Progress(NamedTuple):
    step: int
    best: float
    inner: tuple


class Values(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "run")

    def through(self, state, blank):
        dtensor.save(state, self.path)
        dtensor.load(blank, self.path)
        return blank

    def test_integers_are_exact_or_refused(self):
        draw = random.Random(0)
        edges = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)] + [draw.getrandbits(63) for _ in range(5)]
        for value in edges:
            found = self.through({"seed": value}, {"seed": 0})["seed"]
            self.assertEqual((found, type(found)), (value, int))
        for value in [2**63, 2**64 - 1, -(2**63) - 1]:
            for save in [dtensor.save, dtensor.checkpoint.async_save]:
                with self.assertRaisesRegex(ValueError, f"'rng.seed' is {value}"):
                    save({"rng": {"seed": value}}, self.path)
        self.assertEqual(dtensor.checkpoint.read_index(self.path)["values"]["seed"], edges[-1])

    def test_two_entries_of_one_name_are_refused(self):
        for state in [{"a.b": 1, "a": {"b": 2}}, {1: 1, "1": 2}, {"x": [1], "x.0": 2}, {"a.b": torch.ones(1), "a": {"b": 2}}]:
            with self.assertRaisesRegex(ValueError, "is there twice"):
                dtensor.save(state, self.path)
            self.assertFalse(os.path.exists(self.path))

    def test_tuples_keep_their_class(self):
        state = {"progress": Progress(3, 0.5, (7, Progress(1, 2.0, ()))), "size": torch.Size([2, 3])}
        blank = {"progress": Progress(0, 0.0, (0, Progress(0, 0.0, ()))), "size": torch.Size([0, 0])}
        found = self.through(state, blank)
        self.assertEqual(found, state)
        self.assertEqual((found["progress"].inner[1].best, type(found["size"])), (2.0, torch.Size))


if __name__ == "__main__":
    unittest.main()
