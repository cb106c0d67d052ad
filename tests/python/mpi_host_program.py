"""Run by mpirun: a Python program that owns MPI passes its communicators as mpi4py does, by their Fortran handles, and
goes on to use them."""

import ctypes

import torch

import dtensor
from dtensor import Shard

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)  # Open MPI
mpi.MPI_Comm_c2f.argtypes = [ctypes.c_void_p]


class Comm:
    """The part of mpi4py's communicators that the library and this program use."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle

    def py2f(self) -> int:
        return mpi.MPI_Comm_c2f(self.handle)

    def Get_rank(self) -> int:
        rank = ctypes.c_int()
        assert mpi.MPI_Comm_rank(self.handle, ctypes.byref(rank)) == 0
        return rank.value

    def Get_size(self) -> int:
        size = ctypes.c_int()
        assert mpi.MPI_Comm_size(self.handle, ctypes.byref(size)) == 0
        return size.value

    def Split(self, color: int) -> "Comm":
        part = ctypes.c_void_p()
        assert mpi.MPI_Comm_split(self.handle, color, 0, ctypes.byref(part)) == 0
        return Comm(part)

    def Barrier(self) -> None:
        assert mpi.MPI_Barrier(self.handle) == 0


def train_step(comm: Comm) -> None:
    """One gradient on a mesh of the ranks of `comm` equals one device."""
    mesh = dtensor.init_device_mesh("cpu", (comm.Get_size(),), comm=comm)
    assert mesh.size() == comm.Get_size() and mesh.get_rank() == comm.Get_rank()
    x, w = torch.randn(5, 3), torch.randn(4, 3, requires_grad=True)
    placed = dtensor.distribute_tensor(w.detach(), mesh, [Shard(0)]).requires_grad_()
    rows = dtensor.distribute_tensor(x, mesh, [Shard(0)])
    comm.Barrier()
    torch.nn.functional.linear(rows, placed).square().sum().backward()
    torch.nn.functional.linear(x, w).square().sum().backward()
    torch.testing.assert_close(placed.grad.full_tensor(), w.grad)


def main() -> None:
    assert mpi.MPI_Init(None, None) == 0
    world = Comm(ctypes.cast(ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), ctypes.c_void_p))
    torch.manual_seed(0)
    train_step(world)
    train_step(world.Split(world.Get_rank() % 2))
    try:
        dtensor.init_device_mesh("cpu", (1,), comm=7)
    except TypeError as error:
        assert "expected `comm` to be a communicator of mpi4py, got 7" in str(error)
    else:
        raise AssertionError("a number is no communicator")
    world.Barrier()
    assert mpi.MPI_Finalize() == 0


main()
