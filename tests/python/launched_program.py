"""Run by a launcher with ``python -m``. The argument selects a case: a rank prints and fails, ranks diverge, one rank is
late, the program sets its number of threads, or each rank prints its number. The tests compare the end of the output.
"""

import sys
import time

import torch

import dtensor
from dtensor import Replicate, Shard

way = sys.argv[1]
if way == "late":
    dtensor.set_timeout(2)
if way == "threads":
    torch.set_num_threads(3)
mesh = dtensor.init_device_mesh("cpu", (dtensor.world_size(),), mesh_dim_names=("dp",))
last = dtensor.rank() == dtensor.world_size() - 1
x = dtensor.distribute_tensor(torch.ones(4), mesh, [Replicate()])
if way == "printed" and last:
    print("printed before the failure")  # buffered, since stdout is not a terminal
    raise KeyError("on purpose")
if way == "diverged" and last:
    x + 1
if way == "late" and last:
    time.sleep(20)
if way == "threads":
    print(f"threads {torch.get_num_threads()}")
if way == "world":
    print(f"{dtensor.world()}, {x.redistribute(placements=[Shard(0)]).to_local().numel()} elements")
x.redistribute(placements=[Shard(0)]).full_tensor()
dtensor.barrier()
