// Runs a function as thread ranks: sets up each thread.
#include "comm/local/threads/run_local.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <optional>
#include <thread>

#include "comm/error_messages.h"
#include "comm/launch/rank_exit.h"
#include "comm/local/backend.h"
#include "comm/local/threads/first_failure.h"
#include "comm/local/threads/thread_pool.h"
#include "comm/waiting/no_timeout.h"
#include "internal/checked_from_environment.h"

namespace dtensor {
namespace local {
namespace {

// Fresh autograd state, with backward on the rank's own thread. Autograd's worker threads are shared by all ranks, so
// two ranks that wait for each other there would deadlock. The cache of autocast's casts belongs to the process, and a
// rank that leaves autocast clears it: with several ranks, it would depend on the others which casts a rank repeats.
void set_up_thread(int ranks, int intra_op_threads) {
  at::autocast::set_autocast_cache_enabled(ranks == 1);
  c10::AutogradState::set_tls_state(c10::AutogradState(/*grad_mode=*/true, /*inference_mode=*/false,
                                                       /*fw_grad_mode=*/true, /*multithreading_enabled=*/false));
  at::get_num_threads();  // before its first call on a thread, set_num_threads changes the setting of the process
  at::set_num_threads(intra_op_threads);
}

// The profiler of the starting thread also records the ranks.
class Profiler {
 public:
  Profiler() {
    auto* state = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
    if (state != nullptr) state_ = {c10::ThreadLocalDebugInfo::current(), state};
  }
  // Runs on the thread of a rank and restores its state afterwards.
  void run(const std::function<void()>& rank) const {
    if (!state_) return rank();
    at::set_record_function_tls_(callbacks_);
    const c10::DebugInfoGuard seen(c10::DebugInfoKind::PROFILER_STATE, state_);
    rank();
  }

 private:
  at::RecordFunctionTLS callbacks_ = at::get_record_function_tls_();
  std::shared_ptr<c10::DebugInfoBase> state_;
};

}  // namespace

RunResult run_ranks(int ranks, const std::function<void(Communicator)>& fn, RunOptions options) {
  TORCH_CHECK(ranks >= 1, "run_local: expected at least 1 rank, got ", ranks);
  options.timeout = clamp_timeout(options.timeout);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  auto world = std::make_shared<World>(ranks, options, ranks + running_threads() > cores);
  const auto group = make_world_group(world);
  const int threads = at::get_num_threads();
  const int intra_op = options.set_threads ? std::max(1, threads / ranks) : threads;
  static std::atomic<std::uint64_t> runs{0};
  const auto run = ++runs;
  for (int r = 0; r < ranks; ++r) world->set_record(r, std::make_shared<RankRecord>(r, ranks, run));
  const Profiler profiler;
  FirstFailure first;
  run_on_threads(ranks, [&](int rank) {
    const RankThreadScope thread(*world->record(rank));
    const at::ThreadLocalStateGuard left_as_found{at::ThreadLocalState()};  // the next run is another rank
    try {
      set_up_thread(ranks, intra_op);
      auto backend = make_backend(group, rank);
      backend->set_record(world->record(rank));
      const CheckedFromEnvironment checked;
      profiler.run([&] { fn(Communicator(std::move(backend))); });
      if (world->failed() && world->record(rank)->has_unreported_failure()) world->throw_failure();
    } catch (...) {
      // Read the text before recording: another rank's error may replace this one and drop its last reference.
      const std::string text = current_exception_text();
      first.record_current(rank);
      world->fail("rank " + std::to_string(rank) + " failed: " + text);
    }
    run_rank_exit_hooks();
    world->leave(rank);
  });
  at::set_num_threads(threads);  // new threads of the process inherit the value set last on any thread
  return first.result();
}

}  // namespace local

void run_local(int ranks, const std::function<void(Communicator)>& fn, RunOptions options) {
  const auto result = local::run_ranks(ranks, fn, options);
  if (result.error) local::rethrow(result);
}

}  // namespace dtensor
