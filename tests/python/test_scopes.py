"""Scopes that command lines or environment variables can open, too."""

import time
import unittest

import torch

import dtensor
from dtensor import Replicate, Shard


class CheckedCalls(unittest.TestCase):
    def program(self, checks):
        mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        x = dtensor.distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        with dtensor.Checked(checks):
            if dtensor.rank() == 1:
                x + 1
            return x.redistribute(placements=[Replicate()]).to_local().tolist()

    def test_diverged_ranks_get_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "their operators differ, first in call 1: rank 0 called none; rank 1 called aten::add"):
            dtensor.run(2, self.program, "calls")
        with self.assertRaisesRegex(ValueError, r'Checked\("all"\): expected one of calls, values'):
            dtensor.Checked("all")


class Timeouts(unittest.TestCase):
    def late(self, patient):
        if patient and dtensor.rank() == 0:
            with dtensor.NoTimeout():
                dtensor.barrier()
        else:
            time.sleep(2 * dtensor.rank())
            dtensor.barrier()
        return "met"

    def test_no_timeout_waits_for_a_late_rank(self):
        self.assertEqual(dtensor.run(2, self.late, True, timeout=0.5), ["met", "met"])
        with self.assertRaisesRegex(RuntimeError, "timeout after 500 ms"):
            dtensor.run(2, self.late, False, timeout=0.5)


if __name__ == "__main__":
    unittest.main()
