// Selects the backend for a program's ranks, and converts exceptions into a message and an exit status.
#include "dtensor/launch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "comm/error_messages.h"
#include "comm/launch/launch_flags.h"
#include "comm/launch/launcher_environment.h"
#include "comm/local/threads/run_local.h"
#include "comm/p2p/job/termination.h"
#include "comm/waiting/no_timeout.h"
#include "internal/checked_from_environment.h"

namespace dtensor {
namespace {

int launch_threads(int ranks, const std::function<void(Communicator)>& fn, RunOptions options) {
  local::RunResult result;
  try {
    result = local::run_ranks(ranks, fn, options);
    if (!result.error) return 0;
    std::rethrow_exception(result.error);
  } catch (...) {  // from a rank, or from starting the ranks
    print_failure(std::max(result.rank, 0), current_exception_text(), current_exception_trace());
  }
  return 1;
}

int run_simulation(const DryRunRequest& which, const std::function<void(Communicator)>& fn) {
  const SimulationMain run = simulation_main();
  if (run == nullptr) throw LaunchError("--dtensor-simulate: this build of dtensor has no dry runs");
  try {
    return run(which, fn);
  } catch (...) {
    print_failure(which.rank, current_exception_text(), current_exception_trace());
  }
  return 1;
}

std::string started_as(const LauncherEnvironment& e) {
  if (e.launcher.empty()) return "started as one process, but ";
  return "started by " + e.launcher + " as " + std::to_string(e.size) + " processes, but ";
}

void check_size(const LaunchFlags& flags, const LauncherEnvironment& e) {
  if (flags.ranks != 0 && flags.ranks != e.size) {
    throw LaunchError(started_as(e) + "--ranks asks for " + std::to_string(flags.ranks));
  }
  if (flags.mesh > e.size) throw LaunchError(started_as(e) + "--mesh needs " + std::to_string(flags.mesh) + " ranks");
}

// Selects the backend of one process among several; null: thread ranks of this process.
ProcessMain choose(const LaunchFlags& flags, const LauncherEnvironment& e) {
  const bool several = e.size > 1;
  if (flags.backend == "local" || (flags.backend.empty() && !several)) {
    if (several) throw LaunchError(started_as(e) + "--backend local runs threads of one process");
    return nullptr;
  }
  const bool want_mpi = flags.backend == "mpi" || (flags.backend.empty() && e.mpi);
  const bool want_sockets =
      flags.backend == "socket" || (flags.backend.empty() && !e.mpi && nccl_entries().main == nullptr);
  if (want_sockets) return check_size(flags, e), socket_main();
  const std::string unavailable = want_mpi ? "" : load_nccl();
  const ProcessMain chosen = want_mpi ? mpi_main() : nccl_entries().main;
  if (chosen == nullptr) {
    const std::string lacks = want_mpi ? "this build has no MPI" : unavailable;
    throw LaunchError(several ? started_as(e) + lacks : "--backend " + flags.backend + ": " + lacks);
  }
  if (several || want_mpi) check_size(flags, e);
  return chosen;
}

char interrupt_line[256] = "";  // for the handler, which may call functions without locks only

void on_interrupt(int) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, interrupt_line, std::strlen(interrupt_line));
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

// An unclear environment is an error of launch().
LauncherEnvironment environment_or_alone() {
  try {
    return launcher_environment();
  } catch (const LaunchError&) {
    return {};
  }
}

}  // namespace

void report_interrupt(const std::string& program) {
  const auto environment = environment_or_alone();
  if (environment.rank != 0) return;
  // A progress bar may stand on the terminal's line.
  const std::string begin = (isatty(STDERR_FILENO) == 1 ? "\n" : "") + program;
  if (environment.mpi) {
    const std::string launcher = environment.launcher.empty() ? "the launcher" : environment.launcher;
    p2p::print_at_termination(begin + ": ended by " + launcher + ": interrupted, or a rank has failed\n");
  }
  struct sigaction now = {};
  const bool kept =
      sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL;
  if (kept) return;
  const std::string line = begin + ": interrupted\n";
  std::strncpy(interrupt_line, line.c_str(), sizeof interrupt_line - 1);
  signal(SIGINT, on_interrupt);
}

void print_failure(int rank, const std::string& text, const std::string& trace) {
  const std::string head = "rank " + std::to_string(rank) + ": ";
  std::string line = head + text;
  line.erase(line.find_last_not_of(" \n") + 1);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  std::istringstream frames(trace);
  for (std::string frame; std::getline(frames, frame);) line += frame.empty() ? "" : head + "  " + frame + "\n";
  std::fputs(line.c_str(), stderr);  // one call, so that lines of several processes do not mix
  std::fflush(stderr);
}

void flush_standard_output() {
  if (ftrylockfile(stdout) != 0) return;
  std::fflush(stdout);
  funlockfile(stdout);
}

int finish_output(int status) {
  std::cout.flush();
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || std::cout.bad();
  if (lost) std::fputs("standard output could not be written (a full disk, a closed pipe?)\n", stderr);
  return lost && status == 0 ? 1 : status;
}

int launch(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options) {
  report_interrupt(argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program");
  LauncherEnvironment environment;
  try {
    environment = launcher_environment();
    if (environment.rank == 0 && !environment.warning.empty())
      std::fprintf(stderr, "%s\n", environment.warning.c_str());
    const LaunchFlags flags = parse_launch_flags(argc, argv);
    if (flags.simulated.ranks > 0) return finish_output(run_simulation(flags.simulated, fn));
    environment.threads = flags.ranks != 0 ? flags.ranks : static_cast<int>(flags.mesh);
    if (const ProcessMain run = choose(flags, environment)) {
      const auto checked_fn = [&](const Communicator& world) {
        const CheckedFromEnvironment checked;
        fn(world);
      };
      options.timeout = clamp_timeout(options.timeout);
      if (environment.size > 1) mark_rank_process();
      return finish_output(run(argc, argv, checked_fn, options, environment));
    }
    return finish_output(launch_threads(std::max(environment.threads, 1), fn, options));
  } catch (const LaunchError& e) {
    if (environment.rank == 0) std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}

}  // namespace dtensor
