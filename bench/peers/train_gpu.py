#!/usr/bin/env python3
"""A training step of apps/train's GPT on one GPU in PyTorch: bfloat16 with parameters, gradients and AdamW in float32.

  train_gpu.py [--mode eager,fsdp2,compile] [--hidden 2048] [--layers 12] [--heads 16] [--vocab 50257] [--batch 16] [--seq 1024]

eager: autocast, without any distribution. fsdp2: fully_shard of each block and of the model over NCCL with one rank,
MixedPrecisionPolicy(param_dtype=bfloat16). compile: the same with each block and the loss under torch.compile. --vocab 50304 is the
vocabulary padded to a multiple of 64. One JSON line per mode; tokens/s from the mean of the steps after --warmup, the device's work
included; MFU of --peak-tflops by both formulas of apps/train/layouts/flops.h.
"""

import argparse
import contextlib
import json
import os
import time

import torch
import torch.nn.functional as F
from bench_train import Model


def flops_per_token(a, per_pair):
    return 6 * (a.layers * 12 * a.hidden**2 + a.hidden * a.vocab) + per_pair * a.layers * a.hidden * a.seq


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29931", RANK="0", WORLD_SIZE="1")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    how = {
        "mesh": init_device_mesh("cuda", (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    for block in model.h:
        fully_shard(block, **how)
    fully_shard(model, **how)


def run(mode, a):
    torch.manual_seed(0)
    model = Model(a, moe=False, ws=1).cuda()
    loss_of = cross_entropy
    if mode == "compile":
        loss_of = torch.compile(cross_entropy)
        for block in model.h:
            block.compile()
    if mode in ("fsdp2", "compile"):
        shard(model)
    scope = (lambda: torch.autocast("cuda", torch.bfloat16)) if mode == "eager" else contextlib.nullcontext
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(a.vocab, (a.batch, a.seq + 1), device="cuda")
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        with scope():
            logits = model(ids[:, :-1])
        loss = loss_of(logits, ids[:, 1:])
        loss.backward()
        loss.item()  # as the example, which prints it
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    rate = a.batch * a.seq * a.steps / (time.perf_counter() - begin)
    used, causal = (rate * flops_per_token(a, per_pair) / 1e12 for per_pair in (12, 6))
    print(
        json.dumps({
            "bench": "train_gpu", "mode": mode, "torch": torch.__version__, "device": torch.cuda.get_device_name(),
            "tokens_per_s": round(rate), "tflops": round(used, 1), "mfu_percent": round(100 * used / a.peak_tflops, 1),
            "causal_mfu_percent": round(100 * causal / a.peak_tflops, 1), "vocab": a.vocab,
            "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        }),
        flush=True,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = dict(hidden=2048, layers=12, heads=16, vocab=50257, batch=16, seq=1024, steps=10, warmup=3)
    for name, value in sizes.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--peak-tflops", type=float, default=989)
    parser.add_argument("--mode", default="eager,fsdp2")
    a = parser.parse_args()
    for mode in a.mode.split(","):
        run(mode, a)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
