// A save that has returned must be there whatever happens next; one that has not may be there whole, or not at all.
#include "faults/kills.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "dtensor/checkpoint_series.h"
#include "dtensor/tensor.h"
#include "faults/child.h"
#include "faults/state.h"

namespace dtensor::faults {
namespace {

namespace fs = std::filesystem;

enum class At : std::int64_t { start, load, save, step };

// Memory that both processes see, so that what the victim wrote last is there after SIGKILL.
struct Progress {
  std::atomic<std::int64_t> at{0}, saved{0};
};

class SharedProgress {
 public:
  explicit SharedProgress(const std::string& folder) {
    const int descriptor = ::open((folder + ".progress").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    TORCH_CHECK(descriptor >= 0 && ::ftruncate(descriptor, sizeof(Progress)) == 0, "cannot make ", folder, ".progress");
    void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    TORCH_CHECK(memory != MAP_FAILED, "cannot map ", folder, ".progress");
    progress_ = static_cast<Progress*>(memory);
  }
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  ~SharedProgress() { ::munmap(progress_, sizeof(Progress)); }
  Progress* operator->() const { return progress_; }

 private:
  Progress* progress_;
};

DeviceMesh mesh_of(const Communicator& world) { return init_device_mesh(world, at::kCPU, {world.size()}); }

// One checkpoint that is replaced, or a series; what was saved in the background counts once it is finished.
class Saves {
 public:
  Saves(const std::string& folder, const Communicator& world, std::int64_t keep) : folder_(folder), world_(world) {
    if (keep > 0) series_.emplace(folder, world, keep);
  }
  // The step that is certain to be there afterwards.
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

void be_a_victim(const Communicator& world, const std::string& folder, std::int64_t keep, std::int64_t rows) {
  const SharedProgress progress(folder);
  const bool tells = world.rank() == 0;
  const auto be_at = [&](At at) {
    if (tells) progress->at = static_cast<std::int64_t>(at);
  };
  be_at(At::load);
  KnownState state(mesh_of(world), rows);
  Saves saves(folder, world, keep);
  load_newest(state.checkpoint(), folder, world);
  TORCH_CHECK(state.problem().empty(), state.problem());
  for (;;) {
    be_at(At::step);
    state.go_to(state.step() + 1);
    be_at(At::save);
    const std::int64_t certain = saves.save(state, state.step() % 2 == 0);
    if (tells && certain > progress->saved) progress->saved = certain;
  }
}

// What is there now, on one rank more or less than saved it.
void look(const KillOptions& o, const SharedProgress& progress, KillReport& report) {
  const auto note = [&](int& count, const std::string& what) {
    ++count;
    if (report.first_problem.empty()) report.first_problem = "trial " + std::to_string(report.trials) + ": " + what;
  };
  std::string problem;
  std::int64_t step = 0;
  try {
    run_local(1 + report.trials % 3, [&](Communicator world) {
      KnownState state(mesh_of(world), o.rows);
      load_newest(state.checkpoint(), o.folder, world);
      const std::string mine = state.problem();
      if (world.rank() != 0) return;
      problem = mine, step = state.step();
    });
  } catch (const std::exception& error) {
    return note(report.lost, error.what());
  }
  if (!problem.empty()) return note(report.wrong, problem);
  if (step < progress->saved) {
    note(report.lost, "step " + std::to_string(step) + " after " + std::to_string(progress->saved) + " was saved");
  }
  report.last_step = step;
}

void kill_once(const KillOptions& o, const SharedProgress& progress, std::mt19937_64& random, KillReport& report) {
  const auto micros = [&](std::int64_t most) {
    return std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(0, most)(random));
  };
  const auto goal = static_cast<At>(std::uniform_int_distribution<std::int64_t>(0, 3)(random));
  progress->at = 0;
  Child victim({o.program, "run", o.folder, "--ranks", std::to_string(o.ranks), "--keep", std::to_string(o.keep),
                "--rows", std::to_string(o.rows)},
               o.folder + ".output");
  // Until it is at what this trial is about, then a random while longer.
  while (goal != At::start && progress->at < static_cast<std::int64_t>(goal == At::step ? At::save : goal)) {
    if (victim.ended()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::this_thread::sleep_for(goal == At::start ? micros(300'000) : micros(goal == At::load ? 20'000 : 100'000));
  const auto at = static_cast<At>(progress->at.load());
  ++(at == At::start  ? report.starting
     : at == At::load ? report.loading
     : at == At::save ? report.saving
                      : report.stepping);
  const bool alive = !victim.ended();
  victim.kill(SIGKILL);
  const int status = victim.wait(std::chrono::seconds(5));
  ++report.trials;
  if (status == Child::kHung) ++report.hung;
  if (!alive && report.first_problem.empty()) {
    ++report.wrong;
    report.first_problem =
        "the victim ended by itself with " + std::to_string(status) + ", see " + o.folder + ".output";
  }
}

}  // namespace

int run_victim(const std::string& folder, int ranks, std::int64_t keep, std::int64_t rows) {
  run_local(ranks, [&](Communicator world) { be_a_victim(world, folder, keep, rows); });
  return 0;
}

KillReport run_kills(const KillOptions& options) {
  fs::remove_all(options.folder);
  fs::remove(options.folder + ".lock");
  fs::remove(options.folder + ".progress");
  fs::create_directories(fs::absolute(options.folder).parent_path());
  const SharedProgress progress(options.folder);
  std::mt19937_64 random(options.seed);
  KillReport report;
  for (int trial = 0; trial < options.trials && report.good(); ++trial) {
    kill_once(options, progress, random, report);
    look(options, progress, report);
  }
  return report;
}

}  // namespace dtensor::faults
