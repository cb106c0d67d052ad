"""Runs functions on ranks that are processes, in this library's world and in torch.distributed's (gloo)."""

import os
import pickle
import signal
import socket
import tempfile
import time
import traceback

import torch.distributed

import dtensor


def _be_a_rank(rank, ranks, port, folder, fn, args):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID=str(port),
    )  # fmt: skip
    dtensor.set_timeout(30)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        outcome = True, fn(*args)
    except BaseException:
        outcome = False, traceback.format_exc()
    with open(f"{folder}/{rank}", "wb") as file:
        pickle.dump(outcome, file)
    time.sleep(0.3)  # other ranks may still read this rank's memory


def run_processes(ranks, fn, *args, seconds=60):
    """Returns ``fn(*args)`` of each of ``ranks`` processes; raises AssertionError with the text if one fails or hangs.

    The processes are forked: call it in a process that has not run a backward pass.
    """
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port, pids = probe.getsockname()[1], []
        probe.close()
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    _be_a_rank(rank, ranks, port, folder, fn, args)
                finally:
                    os._exit(0)
            pids.append(pid)
        _wait(pids, time.time() + seconds)
        return [_result(f"{folder}/{rank}", rank) for rank in range(ranks)]


def _wait(pids, end):
    left = set(pids)
    while left and time.time() < end:
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _result(path, rank):
    if not os.path.exists(path):
        raise AssertionError(f"rank {rank} ended without a result")
    with open(path, "rb") as file:
        succeeded, result = pickle.load(file)
    if not succeeded:
        raise AssertionError(f"rank {rank}: {result}")
    return result
