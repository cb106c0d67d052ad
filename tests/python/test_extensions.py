"""Names that PyTorch does not have: attention, memory timelines, pipelines, checkpoint series, communication errors."""

import contextlib
import copy
import os
import tempfile
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard, pipeline
from dtensor.checkpoint import CheckpointSeries, load_newest, steps

torch.manual_seed(0)
LAYERS = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4))).double()
ROWS = torch.randn(6, 6).double(), torch.randn(6, 6).double()


class AttentionStrategies(unittest.TestCase):
    def test_the_selected_strategy_is_used(self):
        q, k, v = (torch.randn(2, 4, 8, 4, generator=torch.Generator().manual_seed(n)).double() for n in range(3))
        expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        windowed = dtensor.attention(q, k, v, causal=True, window=3)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            operands = [dtensor.distribute_tensor(t, mesh, [Shard(2)]) for t in (q, k, v)]
            counts = {}
            for name in ["ring", "gather", "ulysses"]:
                with dtensor.attention_strategy(name), dtensor.CommDebugMode() as comm:
                    y = nn.functional.scaled_dot_product_attention(*operands, is_causal=True)
                torch.testing.assert_close(y.full_tensor(), expected)
                counts[name] = set(comm.get_comm_counts())
            narrow = dtensor.attention(*operands, causal=True, window=3)
            torch.testing.assert_close(narrow.full_tensor(), windowed)
            return counts

        for counts in dtensor.run(2, on_rank):
            self.assertIn("all_gather", counts["gather"])
            self.assertIn("all_to_all", counts["ulysses"])
            self.assertFalse({"all_gather", "all_to_all"} & counts["ring"])

    def test_results_have_the_strides_of_one_device(self):
        """Views that work on one device then work here: queries that are expanded, of one token, or transposed."""
        draw = torch.Generator().manual_seed(0)
        keys = torch.randn(4, 6, 5, 8, generator=draw)
        queries = [torch.randn(n, 8, generator=draw).expand(4, 6, n, 8) for n in (1, 3)]
        queries += [torch.randn(4, n, 6, 8, generator=draw).transpose(1, 2) for n in (1, 3)]
        queries += [torch.randn(4, 1, 3, 8, generator=draw).expand(4, 6, 3, 8), torch.randn(6, 4, 3, 8, generator=draw).transpose(0, 1)]
        expected = [nn.functional.scaled_dot_product_attention(q, keys, keys) for q in queries]

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            placed = dtensor.distribute_tensor(keys, mesh, [Replicate()])
            made = []
            for q in queries:
                strided = dtensor.DTensor.from_local(q, mesh, [Replicate()], shape=q.shape, stride=q.stride())
                made.append(nn.functional.scaled_dot_product_attention(strided, placed, placed).stride())
            return made

        for made in dtensor.run(2, on_rank):
            self.assertEqual(made, [t.stride() for t in expected])

    def test_documents_of_each_row(self):
        """Equal to the corresponding mask; another number of rows is an error."""
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 2, 9, 4, generator=draw).double() for _ in range(3))
        starts = torch.tensor([[0, 4, 9], [0, 2, 7]])
        document = (torch.arange(9)[None, :, None] >= starts[:, None]).sum(2)
        mask = (document[:, None, :, None] == document[:, None, None]) & torch.ones(9, 9).tril().bool()
        expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        torch.testing.assert_close(dtensor.attention(q, k, v, causal=True, row_cu_seqlens=starts), expected)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            operands = [dtensor.distribute_tensor(t, mesh, [Shard(2)]) for t in (q, k, v)]
            y = dtensor.attention(*operands, causal=True, row_cu_seqlens=starts)
            torch.testing.assert_close(y.full_tensor(), expected)
            with self.assertRaisesRegex(Exception, "row_cu_seqlens|rows"):
                dtensor.attention(*operands, row_cu_seqlens=starts[:1])
            return y.placements

        self.assertEqual(dtensor.run(2, on_rank), [(Shard(2),)] * 2)

    def test_an_unknown_strategy_is_refused(self):
        with self.assertRaisesRegex(Exception, "spiral"):
            dtensor.attention_strategy("spiral")


class MemoryPool(unittest.TestCase):
    def test_the_limit_bounds_cached_bytes(self):
        def gathered():
            x = dtensor.ones(1 << 18, device_mesh=dtensor.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
            return x.full_tensor().sum().item()

        debug = dtensor.debug
        usual = debug.memory_pool_stats()["limit_bytes"]
        debug.empty_memory_pool()
        self.assertEqual(dtensor.run(2, gathered), [1 << 18] * 2)
        self.assertGreater(debug.memory_pool_stats()["cached_bytes"], 0)
        debug.set_memory_pool_limit(0)
        self.assertEqual(debug.memory_pool_stats()["cached_bytes"], 0)
        dtensor.run(2, gathered)
        self.assertEqual(debug.memory_pool_stats()["cached_bytes"], 0)
        debug.set_memory_pool_limit(usual)


class MemoryTimelines(unittest.TestCase):
    def test_bytes_of_a_rank(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            with dtensor.MemoryTimeline() as timeline:
                kept = dtensor.zeros(64, 32, device_mesh=mesh, placements=[Shard(0)], dtype=torch.float64)
                live = timeline.live()
                torch.zeros(1000, dtype=torch.float64)
            del kept
            return live, timeline.peak(), timeline.csv(), timeline.svg()

        for live, (peak, _, phase), csv, svg in dtensor.run(2, on_rank):
            self.assertEqual((live, peak, phase), (32 * 32 * 8, 32 * 32 * 8 + 8000, "forward"))
            self.assertTrue(csv.startswith("seconds,bytes,phase,module"))
            self.assertIn("<svg", svg)
        with self.assertRaisesRegex(RuntimeError, "not open"):
            dtensor.MemoryTimeline().live()


class Pipelines(unittest.TestCase):
    def test_a_step_equals_one_device(self):
        one = copy.deepcopy(LAYERS)
        expected = nn.functional.mse_loss(one(ROWS[0]), ROWS[1])
        expected.backward()
        expected_norm = nn.utils.get_total_norm([p.grad for p in one.parameters()])

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
            stages = copy.deepcopy(LAYERS)
            line = pipeline.Pipeline(mesh, pipeline.make_schedule(name, 2, 3), nn.functional.mse_loss)
            count = line.last_stage + 1
            parts = [stages[4 * s // count : 4 * (s + 1) // count] for s in range(count)]
            for stage in line.stages:
                line.set_stage(stage, parts[stage])
            first, last = 0 in line.stages, line.last_stage in line.stages
            inputs = pipeline.microbatches(ROWS[0], 3) if first else []
            targets = pipeline.microbatches(ROWS[1], 3) if last else []
            result = line.step(inputs, targets)
            self.assertAlmostEqual(line.evaluate(inputs, targets).item(), expected.item(), places=12)
            self.assertEqual(len(result.live_activations), len(line.stages))
            self.assertAlmostEqual(line.clip_grad_norm_(1e9).item(), expected_norm.item(), places=12)
            self.assertAlmostEqual(result.loss.item(), expected.item(), places=12)
            for stage in line.stages:
                for a, b in zip(parts[stage].parameters(), one[4 * stage // count : 4 * (stage + 1) // count].parameters()):
                    torch.testing.assert_close(a.grad, b.grad)

        for name in ["gpipe", "1f1b", "interleaved", "zbv"]:
            with self.subTest(name):
                dtensor.run(2, on_rank)

    def test_schedules_are_values(self):
        schedule = pipeline.make_schedule("1f1b", 4, 8)
        self.assertEqual((schedule.stages, schedule.microbatches, schedule.rank_of(3)), (4, 8, 3))
        self.assertEqual(pipeline.live_activations(schedule), [4, 3, 2, 1])
        self.assertEqual(pipeline.Schedule.parse(str(schedule)), schedule)
        self.assertNotEqual(pipeline.make_schedule("gpipe", 4, 8), schedule)
        full = pipeline.with_communication(schedule, unsharded_stages=None)
        self.assertIn("SEND_F", str(full))
        self.assertNotIn("UNSHARD", str(full))
        self.assertIn("UNSHARD", str(pipeline.with_communication(schedule)))
        self.assertTrue(pipeline.check(full, stages=4, microbatches=8)["in_order"])
        self.assertLess(pipeline.simulate(schedule)["bubble"], pipeline.simulate(pipeline.make_schedule("gpipe", 4, 4))["bubble"])
        self.assertIn("<svg", pipeline.simulate(schedule)["svg"])
        self.assertEqual(schedule.actions[3][0], "3F0")
        with self.assertRaisesRegex(RuntimeError, "F1"):
            pipeline.check(pipeline.Schedule.parse("0F0 0B0 0B1 0F1"))
        self.assertIn("zbv", pipeline.schedule_names())

    def test_an_error_in_a_stage_is_raised_on_all_ranks(self):
        def fails(x):
            raise KeyError("in a stage")

        def on_rank(failing):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
            line = pipeline.Pipeline(mesh, pipeline.make_schedule("1f1b", 2, 2), nn.functional.mse_loss)
            line.set_stage(dtensor.rank(), fails if dtensor.rank() == failing else nn.Identity())
            try:
                line.step(
                    ROWS[0].chunk(2) if dtensor.rank() == 0 else [], ROWS[1].chunk(2) if dtensor.rank() == 1 else []
                )
            except KeyError:
                with contextlib.suppress(dtensor.CommError):
                    dtensor.barrier()  # waits until the other rank ends
                raise
            except dtensor.PeerError as error:
                self.assertRegex(str(error), f"pipeline: in {failing}F0: KeyError: 'in a stage'")
                raise

        for failing in [0, 1]:
            with self.assertRaisesRegex(KeyError, "in a stage"):
                dtensor.run(2, on_rank, failing)


class Series(unittest.TestCase):
    def test_load_newest(self):
        def on_rank(root):
            mesh = dtensor.init_device_mesh("cpu", (2,))
            series = CheckpointSeries(root, keep=2)
            state = {"w": dtensor.zeros(4, device_mesh=mesh, placements=[Shard(0)]), "step": 0, "note": ""}
            self.assertEqual(series.load_newest(state), ("", []))
            for step in [10, 20, 30]:
                state["w"].fill_(step)
                state.update(step=step, note=f"after {step}")
                (series.async_save if step == 20 else series.save)(state, step, sync=False)
            series.finish()
            self.assertEqual(steps(root), [30, 20])
            other = {"w": dtensor.zeros(4, device_mesh=mesh, placements=[Replicate()]), "step": 0, "note": ""}
            found = load_newest(other, root)
            self.assertEqual((os.path.basename(found.path), found.skipped_checkpoints), ("step-00000030", []))
            self.assertEqual((other["step"], other["note"], other["w"].tolist()), (30, "after 30", [30] * 4))

        with tempfile.TemporaryDirectory() as folder:
            dtensor.run(2, on_rank, os.path.join(folder, "run"))


class Errors(unittest.TestCase):
    def test_a_barrier_without_its_peer_raises_comm_error(self):
        self.assertTrue(issubclass(dtensor.CommError, RuntimeError))
        caught = []

        def on_rank():
            if dtensor.rank() == 0:
                try:
                    dtensor.barrier()
                except dtensor.CommError as error:
                    caught.append(str(error))
                    raise

        with self.assertRaises(RuntimeError):
            dtensor.run(2, on_rank, timeout=5)
        self.assertRegex(caught[0], "rank 1")


if __name__ == "__main__":
    unittest.main()
