#include "fake_cuda/device/ranks.h"

#include <cuda_runtime_api.h>

#include <c10/util/Exception.h>

#include <mutex>
#include <thread>

#include "dtensor/launch.h"
#include "fake_cuda/device/simulator.h"

namespace dtensor::test::fake_cuda {
namespace {

std::string text_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : e.what();
}

std::vector<std::string> errors_of(int ranks, const Schedule& schedule, const std::function<void()>& run) {
  auto& simulator = Simulator::instance();
  simulator.begin(schedule, ranks);
  std::vector<std::string> errors;
  try {
    run();
  } catch (const std::exception& e) {
    errors.push_back(text_of(e));
  }
  for (auto& text : simulator.end()) errors.push_back(std::move(text));
  for (auto& text : errors) text += "\n(seed " + std::to_string(schedule.seed) + ")";
  return errors;
}

}  // namespace

std::vector<std::string> errors_of_devices(int ranks, const Schedule& schedule, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::vector<std::string> thrown;
  auto errors = errors_of(ranks, schedule, [&] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const Simulator::RankScope scope(rank);
        cudaSetDevice(rank);
        try {
          body(rank);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          thrown.push_back(text_of(e));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
  errors.insert(errors.end(), thrown.begin(), thrown.end());
  return errors;
}

std::vector<std::string> errors_of_ranks(int ranks, const Schedule& schedule,
                                         const std::function<void(const Communicator&)>& body) {
  return errors_of(ranks, schedule, [&] {
    run_local(ranks, [&](const Communicator& cpu) {
      const Simulator::RankScope scope(cpu.rank());
      body(nccl_communicator(cpu));  // all on one host: device r for rank r
    });
  });
}

}  // namespace dtensor::test::fake_cuda
