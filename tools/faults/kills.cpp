// A completed save must exist whatever happens next; an interrupted one must be complete or absent. If one of several
// processes is killed, the others must end and report the reason.
#include "faults/kills.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <regex>
#include <thread>

#include "dtensor/checkpoint.h"
#include "dtensor/mesh.h"
#include "faults/state.h"
#include "faults/victim.h"

namespace dtensor::faults {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kHung{300};
constexpr double kLate = 5;

class Campaign {
 public:
  explicit Campaign(const KillOptions& options) : o_(options), progress_(options.folder), random_(options.seed) {
    progress_->campaign = ::getpid();
  }
  KillReport run() {
    for (; report_.trials < o_.trials && report_.good(); ++report_.trials) {
      kill_once();
      if (report_.good()) look();
    }
    return report_;
  }

 private:
  enum class Kill : std::uint8_t { one, launcher, all };

  std::int64_t below(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random_); }
  void note(int& count, const std::string& what) {
    ++count;
    if (report_.first_problem.empty()) report_.first_problem = "trial " + std::to_string(report_.trials) + ": " + what;
  }

  void kill_once();
  bool reaches_phase(StartedJob& job, const Progress::Process& victim, std::int64_t phase);
  void kill(const StartedJob& job, const Progress::Process& victim);
  void wait_for_survivors(StartedJob& job, std::int64_t rank);
  void look();

  const KillOptions o_;
  SharedProgress progress_;
  std::mt19937_64 random_;
  KillReport report_;
  Kill kill_ = Kill::all;
};

// Waits until the victim is in the phase of this trial, and then between microseconds and a tenth of a second.
bool Campaign::reaches_phase(StartedJob& job, const Progress::Process& victim, std::int64_t phase) {
  const auto deadline = Clock::now() + kHung;
  while (victim.entered < phase && !job.any_ended() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (Clock::now() > deadline) note(report_.hung, "the victim did not reach phase " + std::to_string(phase));
  const double starting = o_.backend == Backend::mpi ? 1e6 : 3e5;
  const double log = std::uniform_real_distribution<double>(1.5, 5)(random_);
  const double micros = phase == 0 ? starting * static_cast<double>(below(1000)) / 1000 : std::pow(10, log);
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(micros)));
  if (!job.any_ended()) return true;
  note(report_.wrong, "the victim ended by itself: " + job.output());
  return false;
}

void Campaign::kill(const StartedJob& job, const Progress::Process& victim) {
  kill_ = o_.backend == Backend::threads || victim.rank_plus_one == 0 || below(8) == 0 ? Kill::all : Kill::one;
  if (o_.backend == Backend::mpi && kill_ == Kill::one && below(8) == 0) kill_ = Kill::launcher;
  if (kill_ == Kill::one) {
    ::kill(static_cast<pid_t>(victim.process.load()), SIGKILL);
  } else if (kill_ == Kill::launcher) {
    job.kill_launcher();
  } else {
    job.kill_all();
  }
  ++(kill_ == Kill::one ? report_.one : kill_ == Kill::launcher ? report_.launcher : report_.all);
}

void Campaign::wait_for_survivors(StartedJob& job, std::int64_t rank) {
  const auto took = job.all_gone(kHung.count());
  if (!took) return note(report_.hung, "processes still run: " + job.output());
  report_.slowest = std::max(report_.slowest, *took);
  if (*took > kLate) {
    ++report_.late;
    std::printf("trial %d: all processes ended after %.2f s, killed in phase %lld: %s\n", report_.trials, *took,
                static_cast<long long>(report_.at_last), job.output().c_str());
  }
  if (kill_ != Kill::one) return;
  const std::string said = job.output(), who = "rank " + std::to_string(rank);
  const std::regex by_a_rank("rank [0-9]+: [^\n]*" + who + "[^\n]*\\[rank|rank [0-9]+: [^\n]*" + who +
                             "[^\n]* waits in|rank [0-9]+: [^\n]*waits in [^\n]*" + who);
  if (std::regex_search(said, by_a_rank)) ++report_.reported;
  if (said.find(who) == std::string::npos)
    note(report_.unclear, "no rank reports that " + who + " is missing: " + said);
}

void Campaign::kill_once() {
  progress_->trial = report_.trials;
  progress_->processes = 0;
  for (auto& process : progress_->all) {
    process.process = process.rank_plus_one = process.at = process.entered = 0;
  }
  StartedJob job({o_.program, "run", o_.folder, "--ranks", std::to_string(o_.ranks), "--keep", std::to_string(o_.keep),
                  "--rows", std::to_string(o_.rows), "--trial", std::to_string(report_.trials)},
                 o_.backend, o_.ranks, o_.folder + ".output");
  const auto& victim = progress_->all[o_.backend == Backend::threads ? 0 : static_cast<std::size_t>(below(o_.ranks))];
  // Two of twelve trials kill at start and two while loading; the others kill in one of the first steps and saves.
  const std::int64_t draw = below(12), phase = draw < 4 ? draw / 2 : draw - 2;
  if (!reaches_phase(job, victim, phase)) return;
  report_.at_last = victim.at;
  ++report_.at.at(static_cast<std::size_t>(report_.at_last));
  kill(job, victim);
  wait_for_survivors(job, victim.rank_plus_one - 1);
}

// Loads the remaining checkpoint on one to three ranks.
void Campaign::look() {
  std::string problem;
  std::int64_t step = 0;
  try {
    run_local(1 + report_.trials % 3, [&](Communicator world) {
      KnownState state(init_device_mesh(world, at::kCPU, {world.size()}), o_.rows);
      load_newest(state.checkpoint(), o_.folder, world);
      const std::string mine = state.problem();
      if (world.rank() != 0) return;
      problem = mine, step = state.step();
    });
  } catch (const std::exception& error) {
    return note(report_.lost, error.what());
  }
  if (!problem.empty()) return note(report_.wrong, problem);
  if (step < progress_->saved) {
    note(report_.lost, "step " + std::to_string(step) + " after " + std::to_string(progress_->saved) + " was saved");
  }
  report_.last_step = step;
}

}  // namespace

KillReport run_kills(const KillOptions& options) {
  TORCH_CHECK(options.ranks <= 16, "kills: expected at most 16 ranks, got ", options.ranks);
  fs::remove_all(options.folder);
  fs::remove(options.folder + ".lock");
  fs::remove(options.folder + ".progress");
  fs::create_directories(fs::absolute(options.folder).parent_path());
  return Campaign(options).run();
}

}  // namespace dtensor::faults
