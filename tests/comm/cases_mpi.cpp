// Programs that fail. process_failure_test.cpp runs them under mpirun: `test_mpi_comm --case NAME`.
#include "comm/cases_mpi.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "comm/fixture.h"
#include "dtensor/dtensor.h"
#include "dtensor/launch.h"

namespace dtensor::test {
namespace {

using Body = std::function<void(Communicator)>;

void reduce(const Communicator& world, std::int64_t n) { world.all_reduce(at::ones({n}), ReduceOp::sum).wait(); }

// Sends a signal to this process later, as a launcher that ends its ranks.
void end_soon(int signal, int milliseconds) {
  std::thread([signal, milliseconds] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    kill(getpid(), signal);
  }).detach();
}

// Polls a receive with done() only, as a program that computes meanwhile.
void poll_for_message(const Communicator& world, int peer) {
  Work work = world.recv(at::ones({4}), peer);
  for (int look = 0; look < 5000 && !work.done(); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  TORCH_CHECK(work.done(), "the receive is not done after 5 s of polling");
  work.wait();
}

volatile sig_atomic_t asked = 0;

// A program with its own signal handler, which runs on every rank while the others wait for rank 1.
void save_on_signal(const Communicator& world) {
  signal(SIGTERM, [](int) { asked = 1; });
  end_soon(SIGTERM, 100);
  for (;;) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const at::Tensor any = at::full({1}, static_cast<int>(asked), at::kInt);
    world.all_reduce(any, ReduceOp::max).wait();
    if (any.item<int>() != 0) break;
  }
  std::printf("rank %d saved\n", world.rank());
}

const std::map<std::string, Body>& cases() {
  static const std::map<std::string, Body> all = {
      {"fine", [](Communicator world) { reduce(world, 4); }},
      {"child",  // a rank starts this program without a launcher
       [](Communicator world) {
         const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
         const int status = world.rank() == 1 ? std::system((program + " --case fine").c_str()) : 2 << 8;
         TORCH_CHECK(WEXITSTATUS(status) == 2, "expected status 2, got ", status);
         world.barrier();
       }},
      {"throw",
       [](Communicator world) {
         reduce(world, 4);
         if (world.rank() == 1) throw std::runtime_error("the disk is full");
         reduce(world, 4);
       }},
      {"skip",
       [](Communicator world) {
         if (world.rank() != 1) reduce(world, 4);
       }},
      {"behind",
       [](Communicator world) {
         if (world.rank() != 1) reduce(world, 4);
         world.barrier();
       }},
      {"caught",
       [](Communicator world) {
         const auto mesh = init_device_mesh(world, at::kCPU, {3});
         const at::Tensor ids = distribute_tensor(at::tensor({1, 99, 2}, at::kLong), mesh, {Shard(0)});
         const at::Tensor table = distribute_tensor(at::ones({4, 8}), mesh, {Replicate()});
         try {
           DTensor(at::embedding(table, ids)).full_tensor();
         } catch (const c10::Error&) {
           world.barrier();
         }
       }},
      {"stuck",
       [](Communicator world) {
         if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
         reduce(world, 4);
       }},
      {"shapes", [](Communicator world) { reduce(world, world.rank() == 1 ? 5 : 4); }},
      {"big shapes", [](Communicator world) { reduce(world, world.rank() == 1 ? 500000 : 400000); }},
      // The total number of bytes is equal, but the sizes of the tensors are not.
      {"lists",
       [](Communicator world) {
         const auto first = world.rank() == 1 ? 100000 : 20000;
         const std::vector<at::Tensor> sums = {at::ones({first}), at::ones({120000 - first})};
         world.all_reduce_list(sums, ReduceOp::sum).wait();
       }},
      {"message",
       [](Communicator world) {
         if (world.rank() == 0) world.send(at::ones({300000}), 1, 7).wait();
         if (world.rank() == 1) world.recv(at::ones({3}), 0, 7).wait();
         world.barrier();
       }},
      {"abort",
       [](Communicator world) {
         if (world.rank() == 1) world.abort("out of data");
         world.barrier();
       }},
      {"recv",
       [](Communicator world) {
         if (world.rank() == 0) world.recv(at::ones({4}), 1).wait();
         reduce(world, 4);
       }},
      {"axes",
       [](Communicator world) {
         if (world.rank() < 2) {
           const auto pair = world.subgroup({0, 1}, "tp");
           if (world.rank() == 0) pair.barrier();
         }
         reduce(world, 4);
       }},
      {"polls",
       [](Communicator world) {
         if (world.rank() == 0) poll_for_message(world, 1);
       }},
      {"helpers",
       [](Communicator world) {
         const Communicator helpers = world.subgroup({0, 1, 2});
         const auto late = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1200)); };
         std::thread helper([&] {
           if (world.rank() == 0) late();
           helpers.barrier();
         });
         if (world.rank() != 0) late();
         world.barrier();
         helper.join();
       }},
      {"two threads",  // rank 1 calls a collective while its helper waits for the others in one
       [](Communicator world) {
         const auto sleep = [](int milliseconds) {
           std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
         };
         std::exception_ptr error;
         std::thread helper([&] {
           if (world.rank() == 1) {
             EXPECT_THROW(reduce(world, 4), CommError);
           }
         });
         sleep(world.rank() == 1 ? 100 : 500);
         try {
           reduce(world, 4);
           world.barrier();
         } catch (const CommError&) {
           error = std::current_exception();
         }
         helper.join();
         if (error) std::rethrow_exception(error);
       }},
      {"everybody", [](Communicator) { TORCH_CHECK(false, "no such file"); }},
      {"own handler", save_on_signal},
      {"interrupted",
       [](Communicator world) {
         world.barrier();
         end_soon(SIGTERM, 400);  // all ranks wait, before they detect the deadlock
         world.recv(at::ones({4}), (world.rank() + 1) % world.size()).wait();
       }},
      {"kill",
       [](Communicator world) {
         reduce(world, 4);
         if (world.rank() == 1) kill(getpid(), SIGKILL);
         reduce(world, 4);
       }},
  };
  return all;
}

}  // namespace

// A process may call launch() again. Rank 0, which runs the rendezvous, is the last to do so.
int launch_twice(int argc, char** argv) {
  bool first = false;
  const auto body = [&](const Communicator& world) {
    reduce(world, 4);
    first = world.rank() == 0;
  };
  if (const int status = launch(argc, argv, body); status != 0) return status;
  if (first) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return launch(argc, argv, body);
}

int run_case(const char* name, int argc, char** argv) {
  if (std::string(name) == "twice") return launch_twice(argc, argv);
  const auto found = cases().find(name);
  if (found == cases().end()) return std::fprintf(stderr, "no case %s\n", name), 2;
  RunOptions options;
  const std::set<std::string> waits{"recv", "axes", "child"};  // must end before the timeout
  options.timeout = std::chrono::milliseconds(waits.contains(name) ? 60000 : 1500);
  return launch(argc, argv, found->second, options);
}

}  // namespace dtensor::test
