#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>

#include <exception>
#include <numeric>

#include "comm/launch/rank_exit.h"
#include "comm/local/threads/thread_pool.h"
#include "comm/record/rank_record.h"
#include "comm/simulated/backend.h"
#include "internal/ranks/simulated_rank.h"

namespace dtensor {

void run_simulated_rank(const SimulatedRanks& which, const std::function<void(Communicator)>& fn) {
  std::vector<std::int64_t> world(static_cast<std::size_t>(which.ranks));
  std::iota(world.begin(), world.end(), std::int64_t{0});
  const auto record = std::make_shared<RankRecord>(which.rank, which.ranks);
  std::exception_ptr error;
  local::run_on_threads(1, [&](int) {
    const RankThreadScope thread(*record);
    const at::ThreadLocalStateGuard left_as_found{at::ThreadLocalState()};
    // Backward runs on this thread, as it does on thread ranks.
    c10::AutogradState::set_tls_state(c10::AutogradState(true, false, true, /*multithreading_enabled=*/false));
    try {
      auto backend = std::make_shared<SimulatedBackend>(which.rank, world);
      backend->set_asynchronous(which.asynchronous);
      backend->set_record(record);
      fn(Communicator(std::move(backend)));  // without Checked: there are no values and no peers to compare
    } catch (...) {
      error = std::current_exception();
    }
    run_rank_exit_hooks();
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace dtensor
