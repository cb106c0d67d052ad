// A program whose save succeeded must have saved: the final checkpoint is complete and of a program that returned
// success.
#include "faults/concurrent_saves.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "dtensor/checkpoint.h"
#include "faults/child.h"
#include "faults/state.h"

namespace dtensor::faults {
namespace {

namespace fs = std::filesystem;

DeviceMesh line_of(const Communicator& world) { return init_device_mesh(world, at::kCPU, {world.size()}); }

std::string output_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_lock_error(const std::string& text) {
  return text.find("another program saves to ") != std::string::npos && std::count(text.begin(), text.end(), '\n') == 1;
}

// The step of the checkpoint; -1 and `problem` if it is damaged.
std::int64_t step_there(const RivalOptions& o, std::string& problem) {
  std::int64_t step = -1;
  try {
    run_local(1, [&](Communicator world) {
      KnownState state(line_of(world), o.rows);
      state.checkpoint().load(o.folder, world);
      problem = state.problem();
      step = problem.empty() ? state.step() : -1;
    });
  } catch (const std::exception& error) {
    problem = error.what();
  }
  return step;
}

void meet(const RivalOptions& o, RivalReport& report) {
  const std::int64_t first = 2 * report.trials + 1;
  const auto words = [&](std::int64_t step) -> std::vector<std::string> {
    return {o.program,
            "save",
            o.folder,
            "--ranks",
            std::to_string(o.ranks),
            "--rows",
            std::to_string(o.rows),
            "--step",
            std::to_string(step)};
  };
  const std::string outputs[] = {o.folder + ".first", o.folder + ".second"};
  Child a(words(first), outputs[0]), b(words(first + 1), outputs[1]);
  const int status[] = {a.wait(std::chrono::seconds(60)), b.wait(std::chrono::seconds(60))};
  std::set<std::int64_t> successful;
  for (int i = 0; i < 2; ++i) {
    if (status[i] == 0) successful.insert(first + i);
    const std::string text = output_of(outputs[i]);
    if (status[i] == 0 || is_lock_error(text)) continue;
    ++report.unclear;
    if (report.first_problem.empty()) report.first_problem = "status " + std::to_string(status[i]) + ": " + text;
  }
  ++(successful.size() == 2 ? report.both : successful.size() == 1 ? report.one : report.none);
  std::string problem;
  const std::int64_t there = step_there(o, problem);
  if (successful.empty() || successful.contains(there)) return;
  ++report.damaged;
  if (report.first_problem.empty()) report.first_problem = "found step " + std::to_string(there) + ": " + problem;
}

}  // namespace

int run_rival(const std::string& folder, int ranks, std::int64_t step, std::int64_t rows) {
  try {
    run_local(ranks, [&](Communicator world) {
      KnownState state(line_of(world), rows);
      state.go_to(step);
      state.checkpoint().save(folder, world);
    });
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}

RivalReport run_rivals(const RivalOptions& options) {
  fs::remove_all(options.folder);
  fs::create_directories(fs::absolute(options.folder).parent_path());
  RivalReport report;
  for (; report.trials < options.trials; ++report.trials) meet(options, report);
  return report;
}

}  // namespace dtensor::faults
