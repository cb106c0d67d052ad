// A program that owns MPI and uses the library within it.  mpirun -n N mpi_host LEVEL
// LEVEL: single, funneled, serialized or multiple. Prints a line on failure and returns 1.
#include <ATen/Parallel.h>
#include <mpi.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "dtensor/dtensor.h"
#include "dtensor/mpi.h"

namespace {

using namespace dtensor;

int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

void expect(bool holds, const std::string& what) { TORCH_CHECK(holds, "mpi_host: ", what); }

template <class Error = c10::Error>
void expect_error(const std::function<void()>& fn, const std::string& part) {
  try {
    fn();
  } catch (const Error& error) {
    return expect(std::string(error.what()).find(part) != std::string::npos,
                  "'" + part + "' is not in " + error.what());
  }
  expect(false, "no error, expected '" + part + "'");
}

// The program's own communication, on its own communicator.
void host_communicates(MPI_Comm comm) {
  int own = rank_of(comm) + 1, sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, comm);
  expect(sum == size_of(comm) * (size_of(comm) + 1) / 2, "sum of the program's own MPI_Allreduce");
}

// A training step on shards equals the step on full tensors.
void check_step(const DeviceMesh& mesh, MPI_Comm comm) {
  const at::Tensor weight = at::linspace(-1, 1, 15, at::kDouble).view({5, 3});
  const at::Tensor data = at::linspace(0, 2, 35, at::kDouble).view({7, 5});
  const at::Tensor full = weight.clone().requires_grad_();
  const at::Tensor w = distribute_tensor(weight, mesh, {Shard(1)}).requires_grad_();
  const at::Tensor x = distribute_tensor(data, mesh, {Shard(0)});
  for (int step = 0; step < 3; ++step) {
    at::mm(data, full).tanh().sum().backward();
    at::mm(x, w).tanh().sum().backward();
    host_communicates(comm);
    expect(at::allclose(DTensor(w.grad()).full_tensor(), full.grad()), "gradient of a step");
  }
}

void check_refusals(MPI_Comm comm) {
  expect_error([] { from_mpi(MPI_COMM_NULL); }, "MPI_COMM_NULL");
  MPI_Comm freed = MPI_COMM_NULL;
  MPI_Comm_dup(comm, &freed);
  const MPI_Comm stale = freed;
  MPI_Comm_free(&freed);
  expect_error([&] { from_mpi(freed); }, "MPI_COMM_NULL");
  expect_error([&] { from_mpi(stale); }, "was it freed?");
  if (size_of(comm) == 1) return;
  MPI_Comm half = MPI_COMM_NULL, inter = MPI_COMM_NULL;
  const int color = rank_of(comm) == 0 ? 0 : 1;
  MPI_Comm_split(comm, color, 0, &half);
  MPI_Intercomm_create(half, 0, comm, color == 0 ? 1 : 0, 7, &inter);
  expect_error([&] { from_mpi(inter); }, "intercommunicator");
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

// Two communicators at once: all ranks, and those of each color.
void check_several(MPI_Comm comm) {
  MPI_Comm colored = MPI_COMM_NULL;
  MPI_Comm_split(comm, rank_of(comm) % 2, -rank_of(comm), &colored);
  const Communicator all = from_mpi(comm), part = from_mpi(colored);
  expect(all == from_mpi(comm) && !(all == part), "one communicator of the library for one of the program");
  expect(all == from_mpi(MPI_Comm_c2f(comm)), "a communicator of Fortran");
  expect(part.rank() == rank_of(colored) && part.size() == size_of(colored), "ranks are those of the communicator");
  for (int i = 0; i < 3; ++i) {
    at::Tensor a = at::ones({4}), b = at::full({2}, rank_of(comm) % 2 + 1.0);
    all.all_reduce(a, ReduceOp::sum).wait();
    host_communicates(colored);
    part.all_reduce(b, ReduceOp::sum).wait();
    expect(at::equal(a, at::full({4}, static_cast<double>(all.size()), at::kFloat)), "sum over all ranks");
    expect(at::equal(b, at::full({2}, (rank_of(comm) % 2 + 1.0) * part.size())), "sum over a color");
  }
  MPI_Comm_free(&colored);  // the library has its own duplicate
  part.barrier();
}

void check_threads(const Communicator& ranks, const std::string& level) {
  std::string error;
  std::thread other([&] {
    try {
      at::Tensor one = at::ones({1});
      ranks.all_reduce(one, ReduceOp::sum).wait();
    } catch (const CommError& refused) {
      error = refused.what();
    }
  });
  other.join();
  const bool permitted = level == "serialized" || level == "multiple";
  expect(error.empty() == permitted, "communication on another thread: " + error);
  expect(permitted || error.find("only the thread that initialized it") != std::string::npos, error);
}

// Ranks that call different collectives get an error each, and may start again on the same communicator.
void check_failure(MPI_Comm comm) {
  if (size_of(comm) == 1) return;
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(comm, &own);
  const Communicator ranks = from_mpi(own);
  at::Tensor one = at::ones({1});
  expect_error<CommError>([&] { rank_of(own) == 0 ? ranks.barrier() : ranks.all_reduce(one, ReduceOp::sum).wait(); },
                          "rank");
  MPI_Barrier(own);
  const Communicator again = from_mpi(own);
  expect(!(again == ranks), "a failed communicator is not returned again");
  at::Tensor sum = at::ones({1});
  again.all_reduce(sum, ReduceOp::sum).wait();
  expect(sum.item<double>() == size_of(own), "the sum after a failure");
}

// Rank 0 may use all cores, and the other ranks share the first one. The launcher binds no rank.
void check_threads_of_bound_ranks(MPI_Comm comm) {
  cpu_set_t all, first;
  CPU_ZERO(&first);
  sched_getaffinity(0, sizeof(all), &all);
  for (int core = 0; CPU_COUNT(&first) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &first);
  }
  const int former = at::get_num_threads();
  if (rank_of(comm) > 0) sched_setaffinity(0, sizeof(first), &first);
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(comm, &own);
  at::set_num_threads(7);
  from_mpi(own, {.set_threads = false});
  expect(at::get_num_threads() == 7, "set_threads = false keeps the number of threads");
  MPI_Comm_free(&own);
  MPI_Comm_dup(comm, &own);
  from_mpi(own);
  sched_setaffinity(0, sizeof(all), &all);
  const int wanted = rank_of(comm) > 0 ? 1 : CPU_COUNT(&all);
  expect(at::get_num_threads() == wanted, "threads of this rank: " + std::to_string(at::get_num_threads()));
  at::set_num_threads(former);
  MPI_Comm_free(&own);
}

int run(int argc, char** argv, const std::string& level) {
  expect_error([] { from_mpi(MPI_COMM_WORLD); }, "MPI is not initialized");
  int wanted = MPI_THREAD_MULTIPLE, provided = 0;
  if (level == "single") wanted = MPI_THREAD_SINGLE;
  if (level == "funneled") wanted = MPI_THREAD_FUNNELED;
  if (level == "serialized") wanted = MPI_THREAD_SERIALIZED;
  MPI_Init_thread(&argc, &argv, wanted, &provided);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const Communicator ranks = from_mpi(comm);
  expect(ranks.size() == size_of(comm) && ranks.rank() == rank_of(comm), "size and rank");
  const DeviceMesh mesh = init_device_mesh(ranks, at::kCPU, {ranks.size()}, {"dp"});
  check_step(mesh, comm);
  check_several(comm);
  check_refusals(comm);
  check_failure(comm);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) check_threads_of_bound_ranks(comm);
  const at::Tensor outlives = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
  check_threads(ranks, level);  // last: where it is refused, `ranks` has failed
  MPI_Comm_free(&comm);
  MPI_Finalize();
  at::Tensor late = at::ones({1});
  if (level == "multiple" && ranks.size() > 1) {
    expect_error<CommError>([&] { ranks.all_reduce(late, ReduceOp::sum).wait(); }, "MPI has ended");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv, argc > 1 ? argv[1] : "multiple");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);  // without MPI_Finalize: mpirun ends the other ranks
  }
}
