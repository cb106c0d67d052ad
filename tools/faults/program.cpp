// The command line of the campaigns, and the table row that each prints.
#include "faults/program.h"

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "faults/concurrent_saves.h"
#include "faults/corruptions.h"
#include "faults/headers.h"
#include "faults/kills.h"
#include "faults/victim.h"
#include "run_tool.h"

namespace dtensor::faults {
namespace {

struct Flags {
  std::string backend = "threads";
  std::string folder = (std::filesystem::temp_directory_path() / "dtensor_faults").string();
  int trials = 100, ranks = 2;
  std::int64_t keep = 2, rows = 4096, step = 0, trial = 0;
  std::uint64_t seed = 0;
};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

int print_problem(const std::string& problem) {
  if (!problem.empty()) std::printf("FIRST PROBLEM: %s\n", problem.c_str());
  return problem.empty() ? 0 : 1;
}

int kills(const Flags& f) {
  const Backend backend = backend_of_name(f.backend);
  const KillReport r = run_kills({own_path(), f.folder, f.trials, f.ranks, f.keep, f.rows, f.seed, backend});
  std::printf(
      "| kills, %s, %d %s | %d | %d starting, %d loading, %d in a step, %d saving, %d saving in the background, %d in "
      "a step during a save | lost %d, wrong %d, hung %d, unclear %d |\n",
      f.keep > 0 ? "a series" : "one folder", f.ranks, f.backend.c_str(), r.trials, r.at[0], r.at[1], r.at[2], r.at[3],
      r.at[4], r.at[5], r.lost, r.wrong, r.hung, r.unclear);
  std::printf("the run reached step %lld\n", static_cast<long long>(r.last_step));
  if (backend != Backend::threads) {
    std::printf(
        "killed: one process %d times (a rank reported it and its collective %d times), the launcher %d, all %d\n",
        r.one, r.reported, r.launcher, r.all);
    std::printf("all processes ended within %.2f s; trials with more than 5 s: %d\n", r.slowest, r.late);
  }
  return print_problem(r.first_problem);
}

int corruptions(const Flags& f) {
  const CorruptionReport r = run_corruptions({f.folder, f.trials, f.seed});
  for (const auto& [what, c] : r.by_class) {
    std::printf("| %s | %d | found %d, harmless %d | silent %d |\n", what.c_str(), c.found + c.harmless + c.silent,
                c.found, c.harmless, c.silent);
  }
  return print_problem(r.first_problem);
}

int headers(const Flags& f) {
  const HeaderReport r = run_headers({f.folder, f.trials, f.seed});
  std::printf("| hostile headers and JSON | %d | refused %d, read %d | %s |\n", r.trials, r.refused, r.read,
              r.first_problem.empty() ? "each error names the file" : "a problem");
  return print_problem(r.first_problem);
}

int rivals(const Flags& f) {
  const RivalReport r = run_rivals({own_path(), f.folder, f.trials, f.ranks, f.rows});
  std::printf(
      "| two programs, one folder | %d | both saved %d, one %d, none %d | damaged %d, without the expected error %d "
      "|\n",
      r.trials, r.both, r.one, r.none, r.damaged, r.unclear);
  return print_problem(r.first_problem);
}

// Flags of every campaign, and of the programs that they start.
void add_flags(CLI::App& command, Flags& f) {
  command.add_option("folder", f.folder, "working folder; its content is removed")->capture_default_str();
  command.add_option("--trials", f.trials)->check(CLI::Range(1, 1 << 30))->capture_default_str();
  command.add_option("--ranks", f.ranks, "of each run")
      ->check(CLI::Range(1, static_cast<int>(std::tuple_size_v<decltype(Progress::all)>)))
      ->capture_default_str();
  command.add_option("--over", f.backend, "for `kills`: ranks are threads, or processes over sockets or mpi")
      ->check(CLI::IsMember({"threads", "sockets", "mpi"}))
      ->capture_default_str();
  command.add_option("--trial", f.trial)->check(CLI::NonNegativeNumber);
  command.add_option("--keep", f.keep, "number of checkpoints in a series; 0: one checkpoint, which is replaced")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--rows", f.rows, "rows of the largest tensor, 256 bytes each")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command.add_option("--step", f.step)->check(CLI::NonNegativeNumber);
  command.add_option("--seed", f.seed)->capture_default_str();
}

}  // namespace

int run_program(int argc, char** argv) {
  Flags f;
  int (*run)(const Flags&) = nullptr;
  CLI::App app("Fault injection for checkpoints; each campaign prints a table row.", "faults");
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* what, int (*campaign)(const Flags&)) {
    CLI::App* command = app.add_subcommand(name, what);
    add_flags(*command, f);
    command->callback([&run, campaign] { run = campaign; });
  };
  add("kills", "kills runs at random times and resumes them", kills);
  add("corruptions", "damages bytes and files of checkpoints", corruptions);
  add("headers", "changes tokens of headers and JSON files", headers);
  add("rivals", "runs two programs that save to one folder", rivals);
  add("run", "what `kills` kills",
      [](const Flags& o) { return run_victim(o.folder, o.ranks, o.keep, o.rows, o.trial); });
  add("save", "one of the two programs of `rivals`",
      [](const Flags& o) { return run_rival(o.folder, o.ranks, o.step, o.rows); });
  return run_tool(app, argc, argv, [&] { return run(f); });
}

}  // namespace dtensor::faults
