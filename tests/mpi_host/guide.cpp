#include <dtensor/dtensor.h>
#include <dtensor/mpi.h>
#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm domain_comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &domain_comm);  // the program's own communicator
  MPI_Comm_rank(domain_comm, &rank);
  {
    const dtensor::Communicator ranks = dtensor::from_mpi(domain_comm);
    const dtensor::DeviceMesh mesh = dtensor::init_device_mesh(ranks, at::kCPU, {ranks.size()}, {"dp"});
    const at::Tensor rows = at::full({3, 2}, rank + 1);  // this rank's part of a field
    const dtensor::DTensor field = dtensor::DTensor::from_local(rows, mesh, {dtensor::Shard(0)});
    const double sum = dtensor::DTensor(field.sum()).full_tensor().item<double>();
    if (rank == 0) std::printf("%ld rows on %d ranks, sum %.0f\n", field.size(0), ranks.size(), sum);
  }
  MPI_Comm_free(&domain_comm);
  MPI_Finalize();
}
