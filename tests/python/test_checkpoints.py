"""Checkpoints of a model and its optimizer: any layout, background writes, safetensors files."""

import copy
import os
import shutil
import tempfile
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.fsdp import fully_shard
from residual_net import IDS, NET, TARGETS, loss_of, rows


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "run")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def trained(self, shape, placement, load):
        mesh = dtensor.init_device_mesh("cpu", shape)
        module = copy.deepcopy(NET)
        if not load:
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(1.5)
        for m in module.modules():
            for key, p in m._parameters.items():
                if p is not None and key != "weight" or m is module.embed:
                    m._parameters[key] = nn.Parameter(dtensor.distribute_tensor(p.detach(), mesh, [placement] * len(shape)))
        module.head.weight = module.embed.weight
        dtensor.distribute_module(module, mesh)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1 if not load else 0.7)
        loss_of(module, IDS, TARGETS).backward()
        optimizer.step()
        return module, optimizer

    def test_any_layout_loads_what_another_saved(self):
        def save():
            module, optimizer = self.trained((2,), Shard(0), load=False)
            dtensor.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "note": "x"}, self.path)
            return [p.full_tensor().detach() for p in module.parameters()], optimizer.state[module.embed.weight]["exp_avg"].tolist()

        expected, average = dtensor.run(2, save)[0]

        def load():
            module, optimizer = self.trained((3,), Replicate(), load=True)
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 0, "note": ""}
            dtensor.load(state, self.path)
            optimizer.load_state_dict(state["optimizer"])
            self.assertEqual((state["step"], state["note"], optimizer.param_groups[0]["lr"]), (7, "x", 0.1))
            self.assertEqual(optimizer.state[module.embed.weight]["exp_avg"].tolist(), average)
            for p, q in zip(module.parameters(), expected):
                self.assertTrue(torch.equal(p.full_tensor(), q))

        dtensor.run(3, load)
        index = dtensor.checkpoint.read_index(self.path)
        self.assertEqual(index["tensors"]["model.embed.weight"], ([6, 8], torch.float64))
        self.assertEqual(index["values"]["step"], 7)

    def test_background_and_errors(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            t = dtensor.distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
            pending = dtensor.checkpoint.async_save({"t": t}, self.path)
            with torch.no_grad():
                t.zero_()
            pending.wait()
            dtensor.load({"t": t}, self.path)
            self.assertEqual(t.tolist(), [0, 1, 2, 3, 4])
            for wrong, text in [({"u": t}, "u"), ({"t": dtensor.ones(3, device_mesh=mesh)}, "t"), ({"t": t, "n": 1}, "n")]:
                with self.assertRaisesRegex(ValueError, text):
                    dtensor.load(wrong, self.path)
            with self.assertRaisesRegex(TypeError, "'x.f', got function"):
                dtensor.save({"x": {"f": rows}}, self.path)

        dtensor.run(2, check)

    def test_loads_safetensors_files(self):
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("safetensors is not installed")
        os.mkdir(self.path)
        file = os.path.join(self.path, "model.safetensors")
        state = {k: v.half() for k, v in NET.state_dict().items() if k != "head.weight"}
        save_file(state, file)

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = fully_shard(copy.deepcopy(NET), mesh=mesh)
            dtensor.checkpoint.load_safetensors(module, self.path)
            self.assertEqual(module.embed.weight.full_tensor().tolist(), state["embed.weight"].double().tolist())
            dtensor.save(module.state_dict(), os.path.join(self.folder, "out"))

        dtensor.run(2, check)
        again = load_file(os.path.join(self.folder, "out", "model.safetensors"))
        self.assertTrue(torch.equal(again["embed.weight"], state["embed.weight"].double()))


if __name__ == "__main__":
    unittest.main()
