#!/usr/bin/env python3
"""This library compared with PyTorch's DTensor on this machine: side_by_side.py BUILD_FOLDER/bench

Runs bench_dispatch, bench_redistribute, bench_train, bench_moe and bench_pipeline_step of this project and the scripts in peers/ (PyTorch over gloo), and prints
only ratios of PyTorch's overhead, redistribution time and step time to those of this library. PEER_PYTHON names the Python whose
torch is used (default: the one that runs this)."""
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.environ.get("PEER_PYTHON", sys.executable)
SOCKETS = os.path.join(HERE, "..", "scripts", "processes.sh")
RANKS = (2, 4)
# mpirun as root, with more ranks than cores, which yield instead of spinning.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
# Names of operators here and in the peer's script.
DISPATCH = {"add": "add", "add_": "add_", "mm": "mm", "view": "view", "t": "t", "sum": "sum", "gelu": "gelu",
            "layer_norm": "layer_norm", "mm, grad": "matmul_fwd_requires_grad", "mm, forward and backward": "matmul_fwd_bwd",
            "_foreach_add_ of 100": "foreach_add_100", "_fused_adamw_ of 100": "adamw_fused_100"}


def json_lines(command):
    """Returns the JSON objects that a program prints; its stderr is not captured."""
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **MPI}).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def peer_problem():
    code = "import torch.distributed.tensor, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
    run = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    if run.returncode == 0:
        print(f"PyTorch {run.stdout.strip()} over gloo")
        return None
    return (run.stderr.strip().splitlines() or ["the program printed no error"])[-1]


def dispatch(build):
    ours = {(r["op"], r["kind"]): r["overhead_us"] * r["outputs"] for r in json_lines([f"{build}/bench_dispatch", "--json", "--wall"])}
    peer = {(r["op"], r["kind"]): r["us"] for r in json_lines([PYTHON, f"{HERE}/peers/bench_dispatch.py"])}
    print(f"\n{'overhead over regular tensors':<28} {'placement':<10} PyTorch's / ours")
    for name, theirs in DISPATCH.items():
        for kind in ("replicate", "shard0"):
            overhead = peer[theirs, "dtensor_" + kind] - peer[theirs, "raw"]
            own = ours[name, kind]
            ratio = f"{overhead / own:15.1f}x" if own > 0 else "  ours is within the noise of 0"
            print(f"{name:<28} {kind:<10} {ratio}")


def our_redistributions():
    program = f"{sys.argv[1]}/bench_redistribute"
    for ranks in RANKS:
        yield from json_lines([program, "--json", "--ranks", str(ranks)])
        if shutil.which("mpirun"):
            yield from json_lines(["mpirun", "-n", str(ranks), program, "--json"])
        yield from json_lines([SOCKETS, str(ranks), program, "--json"])


def redistribution():
    own = list(our_redistributions())
    command = [PYTHON, f"{HERE}/peers/bench_redistribute.py", "--ranks", ",".join(map(str, RANKS)), "--mb", "64"]
    peer = {(r["op"], r["ranks"]): r["ms"] for r in json_lines(command) if "ranks" in r and "ms" in r}
    print(f"\n{'redistribution of 64 MB':<24} {'backend':<8} {'ranks':>5}   PyTorch's time / ours")
    for r in own:
        theirs = peer.get((r["op"], r["ranks"]))
        if theirs is not None:
            print(f"{r['op']:<24} {r['backend']:<8} {r['ranks']:>5} {theirs / r['ms']:18.1f}x")


def our_training(hidden):
    command = [f"{sys.argv[1]}/bench_train", "--mode", "fsdp,tp,tp_lp", "--hidden", str(hidden)]
    yield from json_lines([*command, "--ranks", "2"])
    if shutil.which("mpirun"):
        yield from json_lines(["mpirun", "-n", "2", *command])


def training():
    print(f"\n{'training step on 2 ranks':<24} {'backend':<8} {'hidden':>6}   PyTorch's time / ours   memory / ours")
    for hidden in (64, 256):
        command = [PYTHON, f"{HERE}/peers/bench_train.py", "--mode", "fsdp2,tp,tp_lp", "--hidden", str(hidden)]
        peer = {r["mode"].replace("fsdp2", "fsdp"): r for r in json_lines(command) if "ms_median" in r}
        for r in our_training(hidden):
            theirs = peer.get(r["mode"])
            if theirs is not None:
                print(f"{r['mode']:<24} {r['backend']:<8} {hidden:>6} {theirs['ms_median'] / r['ms_median']:22.1f}x "
                      f"{max(theirs['peak_rss_mb']) / r['peak_rss_mb']:14.1f}x")


def experts():
    print(f"\n{'mixture of experts, 2 ranks':<28} {'backend':<8} {'hidden':>6}   PyTorch's time / ours")
    for hidden in (64, 256):
        ours = [f"{sys.argv[1]}/bench_moe", "--mode", "moe_ep,moe_equal", "--hidden", str(hidden)]
        peer = json_lines([PYTHON, f"{HERE}/peers/bench_train.py", "--mode", "moe_ep", "--hidden", str(hidden)])[0]["ms_median"]
        records = json_lines([*ours, "--ranks", "2"])
        if shutil.which("mpirun"):
            records += json_lines(["mpirun", "-n", "2", *ours])
        for r in records:  # the peer has no forced balance, so all modes use the same peer
            print(f"{r['mode']:<28} {r['backend']:<8} {hidden:>6} {peer / r['ms_median']:22.1f}x")


def pipelines():
    print(f"\n{'step in 2 stages, 8 parts':<24} {'backend':<8} {'hidden':>6}   PyTorch's time / ours")
    peer = {r["schedule"]: r["ms_median"] for r in json_lines([PYTHON, f"{HERE}/peers/bench_pipeline.py"]) if "ms_median" in r}
    ours = [f"{sys.argv[1]}/bench_pipeline_step"]
    records = json_lines([*ours, "--ranks", "2"])
    if shutil.which("mpirun"):
        records += json_lines(["mpirun", "-n", "2", *ours])
    for r in records:
        if r["schedule"] in peer:
            print(f"{r['schedule']:<24} {r['backend']:<8} {r['hidden']:>6} {peer[r['schedule']] / r['ms_median']:22.1f}x")


def main():
    problem = peer_problem()
    if problem:
        print(f"skipped: {PYTHON} cannot import PyTorch's DTensor ({problem}); PEER_PYTHON names another Python")
        return
    dispatch(sys.argv[1])
    redistribution()
    training()
    experts()
    pipelines()


if __name__ == "__main__":
    main()
