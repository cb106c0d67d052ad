// The list of rank exit hooks.
#include "comm/launch/rank_exit.h"

#include <mutex>
#include <vector>

namespace dtensor {
namespace {

std::mutex mutex;
std::vector<RankExitHook>& hooks() {
  static std::vector<RankExitHook> list;
  return list;
}

}  // namespace

void add_rank_exit_hook(RankExitHook hook) {
  std::lock_guard lock(mutex);
  hooks().push_back(hook);
}

void run_rank_exit_hooks() {
  std::unique_lock lock(mutex);
  const auto list = hooks();
  lock.unlock();
  for (auto hook : list) hook();
}

}  // namespace dtensor
