"""Ranks as threads of one process: results, errors, and the GIL is released while a rank waits."""

import functools
import gc
import subprocess
import sys
import tempfile
import threading
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch

import dtensor
from dtensor import _C, Partial, Replicate, Shard
from layouts import mesh_of


class Run(unittest.TestCase):
    def test_returns_the_results_of_ranks(self):
        self.assertEqual(dtensor.run(3, lambda a, b=0: (dtensor.rank(), dtensor.world_size(), a, b), 5, b=7),
                         [(r, 3, 5, 7) for r in range(3)])  # fmt: skip
        self.assertFalse(dtensor.is_thread_rank())
        self.assertEqual((dtensor.rank(), dtensor.world_size()), (0, 1))

    def test_the_first_error_ends_all_ranks_and_names_its_rank(self):
        def fails():
            mesh = mesh_of((3,))
            if dtensor.rank() == 1:
                raise KeyError("oops")
            dtensor.ones(6, device_mesh=mesh, placements=[Partial()]).sum().item()

        with self.assertRaises(KeyError) as caught:
            dtensor.run(3, fails)
        self.assertEqual(caught.exception.__notes__, ["[rank 1 of 3]"])
        self.assertEqual(dtensor.run(2, dtensor.rank), [0, 1])  # the next run is not affected

    def test_objects_are_created_on_all_ranks_at_once(self):
        """pybind11 keeps a table of all objects that only a holder of the GIL may modify."""

        def makes_many(root):
            mesh = dtensor.init_device_mesh("cpu", (8,), mesh_dim_names=("pp",))
            schedule = _C.schedule_with_communication(_C.make_schedule("1f1b", 8, 8), None, False)
            for _ in range(2000):
                _ = [_C.Casts([]) for _ in range(4)], _C.CheckpointSeries(root, 1)
                _C.Pipeline(mesh, schedule, lambda outputs, targets: outputs[0], "pp", None)

        with tempfile.TemporaryDirectory() as root:
            dtensor.run(8, makes_many, root)

    def test_threads_started_by_ranks_are_not_ranks(self):
        """Using the world on them is an error; a rank can pass them its number and mesh."""

        def asks():
            mesh = mesh_of((2,))
            with ThreadPoolExecutor(1) as pool:
                for ask in (dtensor.rank, dtensor.world_size, lambda: dtensor.DTensor.from_local(torch.ones(1))):
                    with self.assertRaisesRegex(RuntimeError, "this thread is not a rank"):
                        pool.submit(ask).result()
                return pool.submit(mesh.get_rank).result()

        self.assertEqual(dtensor.run(2, asks), [0, 1])
        with ThreadPoolExecutor(1) as pool:  # a thread of the program that used the world before run() keeps it
            ask = lambda: pool.submit(dtensor.world_size).result()  # noqa: E731
            self.assertEqual((ask(), dtensor.run(2, ask)), (1, [1, 1]))

    def test_a_timeout_may_be_infinite(self):
        total = lambda: dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Shard(0)]).sum().item()  # noqa: E731
        self.assertEqual(dtensor.run(2, total, timeout=float("inf")), [4.0, 4.0])
        for nonsense in (0, -1, float("nan")):
            with self.assertRaisesRegex(ValueError, "timeout"):
                dtensor.run(2, total, timeout=nonsense)

    def test_a_rank_that_returns_early_is_an_error(self):
        def leaves():
            if dtensor.rank() == 0:
                dtensor.barrier()

        with self.assertRaisesRegex(RuntimeError, "rank 1 returned"):
            dtensor.run(2, leaves)

    def test_timeout(self):
        event = threading.Event()

        def hangs():
            if dtensor.rank() == 0:
                try:
                    dtensor.barrier()
                finally:
                    event.set()
            else:
                event.wait(60)

        with self.assertRaisesRegex(RuntimeError, "timeout after 200 ms"):
            dtensor.run(2, hangs, timeout=0.2)

    def test_bad_arguments(self):
        with self.assertRaisesRegex(RuntimeError, "expected at least 1 rank, got 0"):
            dtensor.run(0, print)
        with self.assertRaisesRegex(TypeError, "callable"):
            dtensor.run(2, 3)

    def test_thread_local_state_of_a_rank_is_restored(self):
        def sets():
            torch.set_grad_enabled(False)

        dtensor.run(2, sets)
        self.assertEqual(dtensor.run(2, torch.is_grad_enabled), [True, True])

    def test_cached_properties_that_communicate(self):
        class Holder:
            @functools.cached_property
            def total(self):
                return dtensor.ones(4, device_mesh=mesh_of((2,)), placements=[Partial()]).sum().item()

        self.assertEqual(dtensor.run(2, lambda: [Holder().total for _ in range(3)], timeout=120), [[4, 4, 4]] * 2)

    def test_nested(self):
        inner = dtensor.run(2, lambda: (dtensor.rank(), dtensor.run(2, dtensor.rank), dtensor.world_size()))
        self.assertEqual(inner, [(0, [0, 1], 2), (1, [0, 1], 2)])


class Forks(unittest.TestCase):
    """A process that a rank forked ends in any way, and the rank continues."""

    PROGRAM = """
import os, sys, dtensor
dtensor.barrier()
if os.fork() == 0:
    {child}
print("status", os.waitstatus_to_exitcode(os.wait()[1]))
dtensor.barrier()
"""

    def run_program(self, child):
        text = self.PROGRAM.format(child=child)
        return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)

    def test_exit_status_of_forks(self):
        for child, status in [("sys.exit(3)", 3), ("raise KeyError('there')", 1), ("os._exit(4)", 4)]:
            done = self.run_program(child)
            self.assertEqual((done.stdout, done.returncode), (f"status {status}\n", 0), done.stderr)

    def test_forks_are_not_ranks(self):
        self.assertIn("forked from a rank", self.run_program("dtensor.barrier()").stderr)


class Listeners(unittest.TestCase):
    PROGRAM = """
import torch, dtensor

def on_rank():
    mesh = dtensor.init_device_mesh("cpu", (2,))
    t = dtensor.ones(4, 4, device_mesh=mesh, placements=[dtensor.Shard(0)], requires_grad=True)
    events = []
    listener = dtensor.EventListener(lambda *event: events.append(event))
    listener.__enter__()
    y = (t @ t).sum()
    t.register_hook(lambda grad: listener.__exit__())
    y.backward()
    del listener
    before = len(events)
    (t + 1).sum().item()
    return 0 < before == len(events)

print(dtensor.run(2, on_rank))
"""

    def test_may_be_closed_inside_a_backward_pass(self):
        """The backward pass is then the last owner of the function, and releases it without the GIL."""
        done = subprocess.run([sys.executable, "-c", self.PROGRAM], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.stdout, done.returncode), ("[True, True]\n", 0), done.stderr)


    def test_do_not_keep_the_owner_of_their_function_alive(self):
        class Counter:
            def __init__(self):
                self.listener, self.count = dtensor.EventListener(self.record), 0

            def record(self, *event):
                self.count += 1

        counter = Counter()
        for expected in (1, 2):  # entered a second time
            with counter.listener:
                dtensor.ones(2, device_mesh=mesh_of((1,))).neg()
            self.assertEqual(counter.count, expected)
        gone = weakref.ref(counter)
        del counter
        gc.collect()
        self.assertIsNone(gone())


class Interpreter(unittest.TestCase):
    """torch makes these calls while it holds the GIL; unless it is released they deadlock."""

    def check(self, fn, timeout=120):
        full = torch.arange(24.0).reshape(4, 6)
        expected = fn(full.clone())

        def on_ranks():
            mesh = mesh_of((4,))
            results = []
            for placement in [Shard(0), Shard(1), Replicate(), Partial()]:
                results.append(fn(dtensor.distribute_tensor(full, mesh, [placement])))
            return results

        for results in dtensor.run(4, on_ranks, timeout=timeout):
            for result in results:
                self.assertEqual(result, expected)

    def test_indexing(self):
        self.check(lambda t: [t[1].tolist(), t[1:3, 2:5].tolist(), t[..., -1].tolist(), t[None].tolist(), t[2, 3].item()])

    def test_advanced_indexing(self):
        self.check(lambda t: [t[torch.tensor([2, 0])].tolist(), t[t > 5].tolist()])

    def test_writes(self):
        def write(t):
            t[1] = 7
            t[2:, 1] = torch.tensor([1.0, 2.0])
            t[t > 20] = 0
            return t.tolist()

        self.check(write)

    def test_reads(self):
        self.check(lambda t: [float(t.sum()), int(t.max()), bool((t >= 0).all()), t.mean().item(), len(t)])
        self.check(lambda t: [row.tolist() for row in t])
        self.check(lambda t: (1 if t.sum() > 0 else 0, f"{t.sum():.2f}", torch.equal(t, t * 1), torch.allclose(t, t)))
        self.check(lambda t: (t.numpy().tolist(), t.__array__().tolist(), t.nonzero().tolist(), 3.0 in t))

    def test_hooks_that_communicate(self):
        def train(t):
            seen = []
            leaf = t.detach().requires_grad_()
            leaf.register_hook(lambda grad: seen.append(grad.sum().item()))
            (leaf * leaf).sum().backward()
            return seen, leaf.grad.tolist()

        self.check(train)


if __name__ == "__main__":
    unittest.main()
