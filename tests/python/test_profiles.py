"""Profilers show each collective with its mesh axis and the bytes that a rank receives."""

import unittest

import torch
from torch.profiler import ProfilerActivity, profile

import dtensor
from dtensor import Replicate, Shard, distribute_tensor


class Profiles(unittest.TestCase):
    def work(self):
        mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)])
        y = x @ distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
        return y.redistribute(placements=[Shard(0)]).redistribute(placements=[Replicate()])

    def collectives(self, seen):
        return {event.key: event.count for event in seen.key_averages() if event.key.startswith("dtensor::")}

    def test_collectives_with_axes_and_bytes(self):
        def on_rank():
            if dtensor.rank() != 0:
                return self.work()
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                self.work()
            return self.collectives(seen)

        found = dtensor.run(2, on_rank)[0]
        self.assertEqual(found.pop("dtensor::reduce_scatter(tp, 32 bytes)"), 1)
        self.assertEqual(found.pop("dtensor::all_gather(tp, 32 bytes)"), 1)
        self.assertEqual({name.split("(")[0] for name in found}, {"dtensor::all_gather"}, found)  # hashes of regular tensors

    def test_a_profile_of_the_program_includes_thread_ranks(self):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            dtensor.run(2, self.work)
        self.assertEqual(self.collectives(seen)["dtensor::reduce_scatter(tp, 32 bytes)"], 2)
        dtensor.run(2, self.work)  # without a profiler


if __name__ == "__main__":
    unittest.main()
