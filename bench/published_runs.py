#!/usr/bin/env python3
"""Compares `plan` with published runs of torchtitan (benchmarks/llama3_h100_202412_torchtitan.md, end of 2024): published_runs.py PLAN.

Two constants are fitted: the rate of products and attention in bfloat16 (row 1a) and in float8 with torch.compile (row 1c), relative to the table
apps/plan/hardware/h100-hbm2e.json, from which all other numbers are. Prints one row of a table for each run, and at the
end the median and the 90th percentile of the errors of the speed, for runs with and without pipelines."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# name, model, ranks, mesh, sequences of a step, tokens of a sequence, recomputation, technique, tokens/s of a GPU, GiB.
ROWS = [
    ("1a", "llama3-8b", 8, "shard=8", 16, 8192, "selective", "eager", 5762, 82.4),
    ("1b", "llama3-8b", 8, "shard=8", 16, 8192, "selective", "compile", 6667, 77.0),
    ("1c", "llama3-8b", 8, "shard=8", 16, 8192, "selective", "float8", 8532, 76.8),
    ("2a", "llama3-8b", 8, "shard=8", 8, 32768, "full", "float8", 3890, 83.9),
    ("2b", "llama3-8b", 8, "shard=4,cp=2", 4, 65536, "full", "float8", 2540, 84.2),
    ("2c", "llama3-8b", 8, "shard=2,cp=4", 2, 131072, "full", "float8", 1071, 84.0),
    ("2d", "llama3-8b", 8, "shard=1,cp=8", 1, 262144, "full", "float8", 548, 84.5),
    ("3a", "llama3-8b", 128, "shard=128", 256, 8192, "selective", "eager", 5605, 67.0),
    ("3b", "llama3-8b", 128, "shard=128", 256, 8192, "selective", "compile", 6514, 62.0),
    ("3c", "llama3-8b", 128, "shard=128", 256, 8192, "selective", "float8", 8380, 61.8),
    ("4", "llama3-70b", 256, "shard=32,tp=8", 512, 8192, "full", "float8", 829, 71.9),
    ("5a", "llama3-405b", 512, "pp=8,shard=8,tp=8", 256, 8192, "full", "float8", 100, 82.5),
    ("5b", "llama3-405b", 512, "pp=8,shard=8,tp=8", 256, 8192, "full", "float8 interleaved", 128, 72.7),
    ("6a", "llama3-405b", 512, "pp=8,shard=8,tp=8", 64, 32768, "full", "float8", 76, 75.3),
    ("6b", "llama3-405b", 512, "pp=8,shard=4,cp=2,tp=8", 32, 65536, "full", "float8", 47, 75.9),
    ("6c", "llama3-405b", 512, "pp=8,shard=2,cp=4,tp=8", 16, 131072, "full", "float8", 31, 77.1),
    ("6d", "llama3-405b", 512, "pp=8,shard=1,cp=8,tp=8", 8, 262144, "full", "float8", 16, 84.9),
]
MICROBATCHES = {"5a": 32, "5b": 32, "6a": 8, "6b": 8, "6c": 8, "6d": 8}
TABLE = pathlib.Path(__file__).parent.parent / "apps/plan/hardware/h100-hbm2e.json"


def predict(plan, row, bfloat16=1.0, float8=1.0):
    """Tokens/s of a GPU and GiB."""
    name, model, ranks, mesh, batch, sequence, recompute, technique, _, _ = row
    table = json.loads(TABLE.read_text())
    for key, points in table["rates"].items():
        if key.endswith("bfloat16"):  # attention is in bfloat16, whatever the products are
            factor = float8 if "float8" in technique and key.startswith("product") else bfloat16
            table["rates"][key] = [[size, rate * factor] for size, rate in points]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(table, file)
        file.flush()
        out = subprocess.run(
            [plan, "search", "--preset", model, "--ranks", str(ranks), "--mesh", mesh, "--batch", str(batch), "--seq", str(sequence),
             "--recompute", recompute, "--hardware", file.name, "--memory-limit", "1000", "--max-tp", "8",
             "--microbatches", str(MICROBATCHES.get(name, 1)),
             "--schedule", "interleaved" if "interleaved" in technique else "1f1b",
             # FSDP2 there: stages of a pipeline gather once a step, other models for forward and for backward.
             "--reshard-after-forward", "false" if mesh.startswith("pp") else "true"],
            capture_output=True, text=True, check=False)
    speed = re.search(r"([0-9]+) tokens/s", out.stdout)
    memory = re.search(r"->.*?([0-9.]+) GB", out.stdout)
    if not speed or not memory:
        raise RuntimeError(f"{name}: {out.stdout}{out.stderr}")
    return float(speed[1]), float(memory[1]) * 1e9 / 2**30


def fit(error):
    """The factor in [0.5, 8] at which the increasing function `error` is zero."""
    low, high = 0.5, 8.0
    for _ in range(8):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if error(middle) < 0 else (low, middle)
    return (low * high) ** 0.5


def main(plan):
    rows = {row[0]: row for row in ROWS}
    bfloat16 = fit(lambda f: predict(plan, rows["1a"], f)[0] - rows["1a"][8])
    float8 = fit(lambda f: predict(plan, rows["1c"], bfloat16, f)[0] - rows["1c"][8])
    print(f"fitted: bfloat16 products x {bfloat16:.2f}, float8 products x {float8:.2f}\n", flush=True)
    errors = {False: [], True: []}
    print("| run | layout | tokens/s: published, predicted | error | GiB: published, predicted | error |\n|---|---|---|---|---|---|")
    for row in ROWS:
        try:
            speed, memory = predict(plan, row, bfloat16, float8)
        except RuntimeError as error:
            print(f"| {row[0]} | {row[3]} | {error} |")
            continue
        errors[row[3].startswith("pp")].append(abs(speed / row[8] - 1))
        print(f"| {row[0]} | {row[1]}, {row[3]}, {row[7]} | {row[8]}, {speed:.0f} | {100 * (speed / row[8] - 1):+.0f}% "
              f"| {row[9]}, {memory:.1f} | {100 * (memory / row[9] - 1):+.0f}% |", flush=True)
    print()
    for pipeline, values in errors.items():
        values.sort()
        print(f"{'with' if pipeline else 'without'} pipelines: median {100 * values[len(values) // 2]:.0f}%, "
              f"90th percentile {100 * values[int(0.9 * (len(values) - 1))]:.0f}%")


if __name__ == "__main__":
    main(sys.argv[1])
