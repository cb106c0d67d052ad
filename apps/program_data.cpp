#include "program_data.h"

#include <filesystem>

std::string program_data(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto program = fs::canonical("/proc/self/exe", error);
  const auto installed = program.parent_path() / DTENSOR_FROM_PROGRAM_TO_DATA / path;
  return !error && fs::exists(installed, error) ? fs::canonical(installed).string() : DTENSOR_APPS "/" + path;
}
