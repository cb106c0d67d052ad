"""hostile_clients.py TRAIN: trains on three processes over sockets, without and with 20 strangers who connect to each port
on which these processes listen. The losses are equal, and the log has a few lines about closed connections."""

import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time

RANKS = 3
ARGUMENTS = ["--mesh", f"shard={RANKS}", "--batch", "3", "--steps", "20", "--seed", "5"]
JOIN, HELLO = b"1nioj:td", b"2teem:td"  # the first bytes of the messages of rendezvous/messages.h


def listening(pids):
    """Addresses on which these processes listen over TCP."""
    inodes = set()
    for pid in pids:
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def stranger(kind, port, held):
    """One of 20 strangers: some send something, some keep the connection."""
    rng = random.Random(kind)
    join = JOIN + rng.randbytes(8) + struct.pack("<II", RANKS, 1) + rng.randbytes(40)
    says = [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(64), rng.randbytes(100000), join, join[:30], join + rng.randbytes(192),
            HELLO + struct.pack("<II", 1, 0) + rng.randbytes(48), HELLO + b"\xff" * 56]  # fmt: skip
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=1)
        connection.sendall(says[kind % len(says)])
        if kind >= len(says):
            held.append(connection)
    except OSError:
        pass


def attack(processes, stop):
    held = []
    while not stop.is_set():
        for port in listening([p.pid for p in processes]):
            for kind in range(20):
                stranger(kind, port, held)
        del held[:-200]
        time.sleep(0.01)


def train(program, hostile):
    """Standard output of rank 0, and the standard error of all ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes, stop = [], threading.Event()
    attacker = threading.Thread(target=attack, args=(processes, stop))
    if hostile:
        attacker.start()
    for rank in range(RANKS):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")  # fmt: skip
        processes.append(subprocess.Popen([program, *ARGUMENTS], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        if hostile:
            time.sleep(0.5)  # the earlier ranks listen and wait
    outputs = [p.communicate() for p in processes]
    stop.set()
    if hostile:
        attacker.join()
    errors = "".join(error for _, error in outputs)
    assert all(p.returncode == 0 for p in processes), errors
    return outputs[0][0], errors


def losses(output):
    return re.findall(r"loss.*", output)


def main():
    program = sys.argv[1]
    alone, quiet = train(program, False)
    attacked, log = train(program, True)
    of_ranks = [line for line in log.splitlines() if line.startswith("rank ")]  # not of the progress bar
    closed = [line for line in of_ranks if "closed a connection from 127.0.0.1" in line]
    assert losses(alone) and losses(alone) == losses(attacked), f"{losses(alone)} alone, {losses(attacked)} with strangers"
    assert "rank " not in quiet, quiet
    assert 1 <= len(closed) <= 10 * RANKS and closed == of_ranks, log
    print(f"equal losses, {len(closed)} lines about strangers")


if __name__ == "__main__":
    main()
