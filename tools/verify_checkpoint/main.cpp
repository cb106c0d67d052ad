// Verifies a checkpoint, or every checkpoint of a series (checkpoint_series.h), from its files: one process, no ranks.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "dtensor/checkpoint.h"

namespace {

constexpr const char* kHelp =
    "usage: verify_checkpoint PATH...\n"
    "PATH: a checkpoint, a folder of checkpoints, or a .safetensors file. Reads all files and compares every "
    "checksum.\n"
    "Exit status: 0 if all are complete, 1 if any is damaged, 2 if a path does not exist.\n";

// Files of other programs have no checksums; they are read and their format is checked.
std::string full(const std::string& path) {
  std::int64_t bytes = 0, unverified = 0;
  const auto index = dtensor::read_checkpoint_index(path);
  for (const auto& entry : index.entries) {
    bytes += entry.bytes;
    unverified += entry.checksum ? 0 : 1;
  }
  std::string text = "complete, " + std::to_string(index.entries.size()) + " tensors of " + std::to_string(bytes) +
                     " bytes, " + std::to_string(index.values.size()) + " values";
  if (unverified > 0) text += "; " + std::to_string(unverified) + " tensors have no checksum";
  return text;
}

bool verify(const std::string& path) {
  const auto problems = dtensor::verify_checkpoint(path);
  for (const std::string& problem : problems) std::printf("%s: DAMAGED: %s\n", path.c_str(), problem.c_str());
  if (problems.empty()) std::printf("%s: %s\n", path.c_str(), full(path).c_str());
  return problems.empty();
}

std::vector<std::string> checkpoints_of(const std::string& path) {
  std::vector<std::string> paths;
  for (const std::int64_t step : dtensor::checkpoint_steps(path)) {
    paths.push_back(dtensor::checkpoint_of_step(path, step));
  }
  return paths.empty() ? std::vector{path} : paths;
}

int run(const std::vector<std::string>& words) {
  const bool help = !words.empty() && (words[0] == "--help" || words[0] == "-h");
  if (words.empty() || help) {
    std::fputs(kHelp, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  int status = 0;
  for (const std::string& word : words) {
    std::error_code error;
    if (!std::filesystem::exists(word, error)) {
      std::fprintf(stderr, "verify_checkpoint: no such file or folder: %s\n", word.c_str());
      return 2;
    }
    for (const std::string& path : checkpoints_of(word)) status = verify(path) ? status : 1;
  }
  if (std::fflush(stdout) == 0) return status;
  std::fputs("verify_checkpoint: cannot write the output\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verify_checkpoint: %s\n", error.what());
    return 1;
  }
}
