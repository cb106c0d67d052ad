"""The Python blocks of the pages run as printed, on four thread ranks. What a block takes from the reader's program (a model,
a mesh) is below. Blocks that name a file belong to tests/guide/run_page.py; ONLY_COMPILED need other packages."""

import os
import re
import shutil
import tempfile
import textwrap
import types
import unittest
import unittest.mock
from pathlib import Path

import torch
from torch import nn

import dtensor
from dtensor import Shard, distribute_tensor
from dtensor.experimental import context_parallel
from dtensor.fsdp import fully_shard

ROOT = Path(__file__).resolve().parents[2]
ONLY_COMPILED = {"docs/guide/libraries.md": 4}  # the last blocks of a page


class Loader:
    def state_dict(self):
        return {"position": 3}

    def load_state_dict(self, state):
        self.position = state["position"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 8)

    def forward(self, ids, labels):
        x = self.embedding(ids).unsqueeze(1)
        y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).squeeze(1)
        return nn.functional.cross_entropy(y.flatten(0, 1), labels.flatten())


class LanguageModel(nn.Module):
    """With the names of a model of transformers."""

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])})
        self.model.layers = self.model["layers"]
        self.embedding = nn.Embedding(8, 8)

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        for layer in self.model["layers"]:
            x = layer(x)
        return types.SimpleNamespace(loss=nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten()))


def mesh(name):
    return dtensor.init_device_mesh("cpu", (4,), mesh_dim_names=(name,))


def of_checkpoints():
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=mesh("dp"))
    return {"model": model, "loader": Loader()}


def of_fsdp():
    torch.manual_seed(0)
    rows = torch.randn(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model.blocks = list(model)
    mine = rows[2 * dtensor.rank() : 2 * dtensor.rank() + 2]
    names = {"rows": rows, "rows_of_this_rank": mine, "model": model, "mesh": mesh("dp")}
    return names | {"fully_shard": fully_shard, "distribute_tensor": distribute_tensor, "Shard": Shard, "nn": nn}


def of_long_sequences():
    torch.manual_seed(0)
    ids = torch.randint(8, (2, 16))
    return {"ids": ids, "labels": ids.clone(), "model": Attention(), "context_parallel": context_parallel, "mesh": mesh("cp")}


def of_same_bits():
    torch.manual_seed(0)
    on = mesh("dp")
    model = dtensor.distribute_module(nn.Linear(32, 32), on)
    x = distribute_tensor(torch.randn(8, 32), on, [Shard(0)])
    return {"model": model, "x": x, "optimizer": dtensor.optim.SGD(model.parameters(), lr=0.1)}


def of_readme():
    torch.manual_seed(0)
    return {"model": LanguageModel(), "ids": torch.randint(8, (4, 16))}


class FeedForward(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(512, width), nn.Linear(width, 512))


def of_python():
    torch.manual_seed(0)
    tokens = torch.randn(4, 512)
    sequence = [distribute_tensor(torch.randn(1, 2, 16, 8), mesh("cp"), [Shard(2)]) for _ in range(3)]
    parts = [nn.Linear(8, 8) for _ in range(4)]
    full = nn.Linear(8, 8).state_dict()
    model = nn.Linear(8, 8)
    fully_shard(model, mesh=mesh("dp"))
    optimizer = torch.optim.AdamW(model.parameters())
    names = {"tokens": tokens, "FeedForward": FeedForward, "widths": [8, 16], "chosen": torch.tensor([[0, 1]] * 4), "weights": torch.rand(4, 2)}
    names |= dict(zip("qkv", sequence)) | {"step": lambda: tokens @ tokens.T, "pp_mesh": mesh("pp"), "parts": parts}
    names |= {"inputs": torch.randn(8, 8), "labels": torch.randint(8, (8,)), "model": model, "optimizer": optimizer}
    return names | {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "full": full}


# Pages and what the reader's program has; None: the blocks are a program of their own.
PAGES = {
    "README.md": of_readme,
    "docs/python.md": of_python,
    "docs/guide/checkpoints.md": of_checkpoints,
    "docs/guide/fsdp.md": of_fsdp,
    "docs/guide/long_sequences.md": of_long_sequences,
    "docs/guide/will_it_fit.md": None,
    "docs/guide/libraries.md": dict,
    "docs/guide/same_bits.md": of_same_bits,
}


def blocks(page):
    found = []
    for match in re.finditer(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        if not re.match(r"# \S+\.py\n", match[1]):
            found.append(compile(textwrap.dedent(match[1]), page, "exec"))
    return found


class Pages(unittest.TestCase):
    def setUp(self):
        self.addCleanup(os.chdir, os.getcwd())
        compiles = unittest.mock.patch("torch.compile", lambda function, **_: function)  # needs packages that a torch may lack
        compiles.start()
        self.addCleanup(compiles.stop)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        os.chdir(folder)
        torch.save(nn.Linear(4, 4).state_dict(), "model.pt")
        os.makedirs("build/release")
        shutil.copy(ROOT / "apps/plan/hardware/h100.json", "build/release/hardware.json")

    def test_each_page_with_blocks_is_listed(self):
        pages = [ROOT / "README.md", ROOT / "docs/python.md", *(ROOT / "docs/guide").glob("*.md")]
        self.assertEqual({str(page.relative_to(ROOT)) for page in pages if blocks(page)}, set(PAGES))

    def test_blocks_run_as_printed(self):
        for page, surroundings in PAGES.items():
            code = blocks(page)
            code = code[: len(code) - ONLY_COMPILED.get(page, 0)]

            def on_rank(make, code):
                names = {"torch": torch, "dtensor": dtensor, **make()}
                for block in code:
                    exec(block, names)

            with self.subTest(page):
                if surroundings is None:
                    on_rank(dict, code)
                else:
                    dtensor.run(4, on_rank, surroundings, code, timeout=120)


if __name__ == "__main__":
    unittest.main()
