#!/usr/bin/env python3
"""Times the parts of a training step on one GPU that decide its speed: which of them are far from the hardware's limit?

  gpu_probes.py [--probes head,attention,experts,norm,step] [--tokens 16384] [--hidden 2048]

head: the three products of a language model's head (logits, gradient of the input, gradient of the weight) in bfloat16
for a vocabulary of 50,257, of 50,264 and 50,304 (rows of a multiple of 16 and of 128 bytes), and of 50,257 with the
padded row stride of 50,304. attention: each backend of scaled_dot_product_attention. experts: grouped products of 8
experts against one product. norm: layer norm in float32 and in bfloat16. step: kernels of one step of train_gpu.py's
model, longest first. One JSON line per measurement: milliseconds (minimum of 10), TFLOP/s or GB/s.
"""

import argparse
import json

import torch
import torch.nn.functional as F


def milliseconds(fn, repeat=10):
    fn()
    fastest = float("inf")
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        fastest = min(fastest, begin.elapsed_time(end))
    return fastest


def report(probe, case, ms, flops=0, moved=0):
    line = {"probe": probe, "case": case, "ms": round(ms, 3)}
    if flops:
        line["tflops"] = round(flops / ms / 1e9, 1)
    if moved:
        line["gb_per_s"] = round(moved / ms / 1e6)
    print(json.dumps(line), flush=True)


def normal(*sizes, dtype=torch.bfloat16):
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def head(a):
    for classes, stride in ((50257, 50257), (50264, 50264), (50304, 50304), (50257, 50304)):
        x, weight = normal(a.tokens, a.hidden), normal(stride, a.hidden)[:classes]
        logits = normal(a.tokens, stride)[:, :classes]
        case, flops = f"{classes} classes, row stride {stride}", 2.0 * a.tokens * a.hidden * classes
        report("head", f"logits, {case}", milliseconds(lambda: torch.mm(x, weight.t(), out=logits)), flops)
        report("head", f"input gradient, {case}", milliseconds(lambda: logits @ weight), flops)
        report("head", f"weight gradient, {case}", milliseconds(lambda: logits.t() @ x), flops)


def attention(a):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads, sequence = a.hidden // 128, 1024
    q, k, v = (normal(a.tokens // sequence, heads, sequence, 128).requires_grad_() for _ in range(3))
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=True)
    print(json.dumps({"probe": "attention", "case": "chosen backend", "value": SDPBackend(chosen).name}))
    gradient = torch.ones_like(q)
    flops = 3.5 * 2 * a.tokens * sequence * a.hidden  # forward and backward, causal
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):

        def both():
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)

        report("attention", backend.name, milliseconds(both), flops)


def experts(a):
    count, rows = 8, 2 * a.tokens
    x, weights = normal(rows, a.hidden), normal(count, a.hidden, a.hidden)
    ends = torch.arange(1, count + 1, device="cuda", dtype=torch.int32) * (rows // count)
    flops = 2.0 * rows * a.hidden**2
    report("experts", "_grouped_mm of 8 experts", milliseconds(lambda: torch._grouped_mm(x, weights, ends)), flops)
    report("experts", "one product", milliseconds(lambda: x @ weights[0]), flops)
    choices = torch.randint(count, (rows,), device="cuda")
    report("experts", "stable sort of the choices", milliseconds(lambda: choices.sort(stable=True)))


def norm(a):
    for dtype in (torch.float32, torch.bfloat16):
        x = normal(a.tokens, a.hidden, dtype=dtype)
        weight = normal(a.hidden, dtype=dtype)
        moved = 2 * x.numel() * x.element_size()
        report("norm", f"forward, {dtype}", milliseconds(lambda: F.layer_norm(x, weight.shape, weight)), moved=moved)


def step(a):
    from bench_train import Model

    sizes = argparse.Namespace(hidden=a.hidden, layers=12, heads=a.hidden // 128, vocab=a.vocab, seq=1024)
    model = Model(sizes, moe=False, ws=1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(a.vocab, (a.tokens // 1024, 1025), device="cuda")

    def one_step():
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        one_step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        one_step()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda k: k.self_device_time_total, reverse=True)
    for kernel in kernels[:40]:
        report("step", f"{kernel.count} x {kernel.key[:120]}", kernel.self_device_time_total / 1e3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(tokens=16384, hidden=2048, vocab=50257).items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--probes", default="head,attention,experts,norm,step")
    a = parser.parse_args()
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}))
    for name in a.probes.split(","):
        {"head": head, "attention": attention, "experts": experts, "norm": norm, "step": step}[name](a)


if __name__ == "__main__":
    main()
