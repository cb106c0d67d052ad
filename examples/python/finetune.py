#!/usr/bin/env python3
"""Fine-tunes a causal language model of the transformers package: a tiny random one, or --model FOLDER --text FILE.

    python finetune.py                                              # one process
    torchrun --nproc-per-node 4 finetune.py --mesh dp=2,tp=2        # or mpirun -n 4 python finetune.py ...
    python finetune.py --threads 4 --mesh dp=4                      # ranks as threads of this process
"""
import argparse
import copy
import os

import torch
import transformers

import dtensor
from dtensor import Replicate, Shard

parser = argparse.ArgumentParser()
parser.add_argument("--mesh", default="dp=1", help="dp splits batch and parameters, tp the matrices")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--model", help="a folder with config.json, a tokenizer and safetensors")
parser.add_argument("--text", default=__file__)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--save", help="a folder for the trained weights")
flags = parser.parse_args()

tiny = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
config = transformers.AutoConfig.from_pretrained(flags.model) if flags.model else tiny
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(config)
if not os.path.isfile(flags.text):
    parser.error(f"--text: expected a regular file, got {flags.text}")
text = open(flags.text).read()
tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained(flags.model).encode(text) if flags.model else list(text.encode()))


def train():
    names, sizes = zip(*(axis.split("=") for axis in flags.mesh.split(",")))
    mesh = dtensor.init_device_mesh("cpu", tuple(map(int, sizes)), mesh_dim_names=names)
    net = copy.deepcopy(model)  # one for each thread rank
    if "tp" in names:  # column-wise; row-wise at the end of attention and MLP; other parameters are replicated
        for name, linear in net.model.layers.named_modules():
            if isinstance(linear, torch.nn.Linear):
                split = Shard(1 if name.endswith(("o_proj", "down_proj")) else 0)
                placements = [split if axis == "tp" else Replicate() for axis in names]
                linear.weight = torch.nn.Parameter(dtensor.distribute_tensor(linear.weight.detach(), mesh, placements))
        dtensor.distribute_module(net, mesh)
    if "dp" in names:
        for layer in net.model.layers:
            dtensor.fully_shard(layer, mesh=mesh["dp"])
        dtensor.fully_shard(net, mesh=mesh["dp"])
    if flags.model:
        dtensor.checkpoint.load_safetensors(net, flags.model)  # each rank reads its shards
    optimizer = dtensor.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(flags.steps):
        rows = torch.arange(8)[:, None] * 64 + step * 7 + torch.arange(32)
        ids = dtensor.distribute_tensor(tokens[rows % len(tokens)], mesh, [Shard(0) if axis == "dp" else Replicate() for axis in names])
        loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        dtensor.optim.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # on every rank, since item() of a DTensor is a collective
        if dtensor.rank() == 0:
            print(f"step {step}: loss {value:.4f}", flush=True)
    if flags.save:
        dtensor.save(net.state_dict(), flags.save)


dtensor.run(flags.threads, train) if flags.threads else train()
