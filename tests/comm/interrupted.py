"""interrupted.py RANKS PROGRAM [ARGUMENT ...]: starts the program as RANKS processes over sockets (1: as it is), presses Ctrl-C
when rank 0 has printed something, and checks what users see: every process ends with a failure and leaves no other line than
one of `interrupted` after it. `--after TEXT` before PROGRAM: waits until rank 0 has printed TEXT. `--mpirun MPIEXEC`: starts
the ranks with that program and interrupts it, as a terminal does."""

import os
import signal
import socket
import subprocess
import sys
import threading


def start(ranks, command):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        if ranks > 1:
            environment |= {"DTENSOR_RANK": str(rank), "DTENSOR_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return processes


def main(ranks, *command):
    options = {"--after": "", "--mpirun": ""}
    while command[0] in options:
        options[command[0]], command = command[1], command[2:]
    after, mpirun = options.values()
    end = "ended by mpirun: interrupted, or a rank has failed\n" if mpirun else "interrupted\n"
    processes = start(1, [mpirun, "-n", ranks, *command]) if mpirun else start(int(ranks), list(command))
    started, lines = threading.Event(), [[] for _ in processes]

    def read(rank):
        for line in processes[rank].stdout:
            lines[rank].append(line)
            if rank == 0 and after in line:
                started.set()

    readers = [threading.Thread(target=read, args=(rank,)) for rank in range(len(processes))]
    for reader in readers:
        reader.start()
    if not started.wait(120):
        sys.exit(f"rank 0 has not printed {after!r}: {lines}")
    before = sum(map(len, lines))
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        process.wait(60)
    for reader in readers:
        reader.join()
    printed = "".join(line for rank in lines for line in rank if "interrupted" in line or "rror" in line or "  File " in line)
    if printed.count("\n") != 1 or not printed.endswith(end) or "interrupted" not in lines[0][-1]:
        sys.exit(f"expected one line that ends in {end!r} as the last one of rank 0, got (after {before} lines) {lines}")
    if any(process.returncode == 0 for process in processes):
        sys.exit(f"expected failures, got {[process.returncode for process in processes]}")


main(*sys.argv[1:])
