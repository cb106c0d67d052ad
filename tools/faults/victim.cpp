#include "faults/victim.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>

#include "dtensor/checkpoint.h"
#include "dtensor/launch.h"
#include "dtensor/tensor.h"
#include "faults/state.h"

namespace dtensor::faults {
namespace {

// One checkpoint that is replaced, or a series. A background save counts when it is finished.
class Saves {
 public:
  Saves(const std::string& folder, const Communicator& world, std::int64_t keep) : folder_(folder), world_(world) {
    if (keep > 0) series_.emplace(folder, world, keep);
  }
  // Saves, and returns the newest step that must exist afterwards.
  std::int64_t save(KnownState& state, bool background) {
    const std::int64_t before = pending_step_, step = state.step();
    pending_step_ = step;
    if (series_) {
      background ? series_->save_async(state.checkpoint(), step) : series_->save(state.checkpoint(), step);
    } else {
      if (pending_) pending_->wait();
      pending_.reset();
      if (background) pending_ = state.checkpoint().save_async(folder_, world_);
      if (!background) state.checkpoint().save(folder_, world_);
    }
    return background ? before : step;
  }

 private:
  std::string folder_;
  Communicator world_;
  std::optional<CheckpointSeries> series_;
  std::optional<PendingSave> pending_;
  std::int64_t pending_step_ = 0;
};

void run_victim_rank(const Communicator& world, const std::string& folder, std::int64_t keep, std::int64_t rows,
                     const SharedProgress& progress, Progress::Process* reported_in) {
  if (reported_in != nullptr) reported_in->rank_plus_one = world.rank() + 1;
  const auto enter = [&](Phase at) {
    if (reported_in == nullptr) return;
    reported_in->at = static_cast<std::int64_t>(at);
    ++reported_in->entered;
  };
  enter(Phase::load);
  KnownState state(init_device_mesh(world, at::kCPU, {world.size()}), rows);
  Saves saves(folder, world, keep);
  load_newest(state.checkpoint(), folder, world);
  TORCH_CHECK(state.problem().empty(), state.problem());
  for (bool background = false;; background = !background) {
    TORCH_CHECK(::kill(static_cast<pid_t>(progress->campaign), 0) == 0, "the campaign has ended");
    enter(background ? Phase::step : Phase::step_during_save);
    state.go_to(state.step() + 1);
    TORCH_CHECK(state.problem().empty(), state.problem());  // A collective for each tensor.
    enter(background ? Phase::save_async : Phase::save);
    const std::int64_t certain = saves.save(state, background);
    if (world.rank() == 0 && certain > progress->saved) progress->saved = certain;
  }
}

}  // namespace

SharedProgress::SharedProgress(const std::string& folder) {
  const int descriptor = ::open((folder + ".progress").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  TORCH_CHECK(descriptor >= 0 && ::ftruncate(descriptor, sizeof(Progress)) == 0, "cannot make ", folder, ".progress");
  void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  TORCH_CHECK(memory != MAP_FAILED, "cannot map ", folder, ".progress");
  progress_ = static_cast<Progress*>(memory);
}

SharedProgress::~SharedProgress() { ::munmap(progress_, sizeof(Progress)); }

int run_victim(const std::string& folder, int ranks, std::int64_t keep, std::int64_t rows, std::int64_t trial) {
  const SharedProgress progress(folder);
  if (progress->trial != trial) return 1;  // Started too late: its job has been killed.
  auto& own = progress->all.at(static_cast<std::size_t>(progress->processes++));
  own.process = ::getpid();
  std::string words[] = {"faults", "--ranks", std::to_string(ranks)};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  return launch(3, argv, [&](Communicator world) {
    const bool is_reported = world.backend_name() != std::string("local") || world.rank() == 0;
    run_victim_rank(world, folder, keep, rows, progress, is_reported ? &own : nullptr);
  });
}

}  // namespace dtensor::faults
