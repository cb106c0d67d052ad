// Runs a program of the tests under mpirun, or as processes that communicate over sockets. Returns the output and exit
// status.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "support/data.h"

namespace dtensor::test {

struct ProcessResult {
  int status = -1;
  std::string output;
  bool in_time = false;  // Not killed by timeout(1).
};

// A program in the directory of this one.
inline std::filesystem::path sibling_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

inline ProcessResult run_shell(const std::string& command) {
  const std::string all =
      "ASAN_OPTIONS=detect_leaks=0 "  // OpenMPI does not free its memory.
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_hwloc_base_binding_policy=none timeout -k 1 60 " +
      command + " 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  ProcessResult out;
  FILE* pipe = popen(all.c_str(), "r");
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) out.output += buffer;
  out.status = pclose(pipe);
  out.in_time = std::chrono::steady_clock::now() - begin < std::chrono::seconds(50);
  return out;
}

inline ProcessResult mpirun(int ranks, const std::filesystem::path& program, const std::string& name) {
  return run_shell("mpirun -n " + std::to_string(ranks) + " " + program.string() + " --case '" + name + "'");
}

// The same without MPI.
inline ProcessResult run_processes(int ranks, const std::filesystem::path& program, const std::string& name) {
  return run_shell("bash " + source_path("scripts/processes.sh") + " " + std::to_string(ranks) + " " +
                   program.string() + " --case '" + name + "'");
}

// The line of a rank's output, identified by its beginning.
inline std::string rank_line(const std::string& output, int rank) {
  const std::string head = "rank " + std::to_string(rank) + ": ";
  for (std::size_t at = 0; at < output.size(); at = output.find('\n', at) + 1) {
    if (output.compare(at, head.size(), head) == 0) return output.substr(at, output.find('\n', at) - at);
    if (output.find('\n', at) == std::string::npos) break;
  }
  return "";
}

}  // namespace dtensor::test
