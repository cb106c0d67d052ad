// Reads `--ranks N`, `--mesh a=2,b=2` and `--backend NAME` (also with `=`), and the variables that launchers set. A
// program may have flags of the same names: a `--mesh` that is a file and a `--backend` of another library are its own.
#include "comm/launch_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace dtensor {
namespace {

constexpr int kMaxRanks = 4096;  // of one process

std::int64_t positive(std::string_view text, std::string_view flag) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMaxRanks) {
    throw LaunchError(std::string(flag) + ": \"" + std::string(text) + "\" is not a number from 1 to " +
                      std::to_string(kMaxRanks));
  }
  return value;
}

// Whether this is meant as the sizes of a mesh: a number or `name=number` somewhere, or a name without its number.
bool is_mesh(std::string_view text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view axis = text.substr(begin, end - begin);
    const std::string_view size = axis.substr(axis.find('=') + 1);  // all of it where there is no '='
    const bool digits = std::all_of(size.begin(), size.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (digits && !axis.empty()) return true;
    begin = end + 1;
  }
  return false;
}

std::int64_t mesh_size(std::string_view text) {
  std::int64_t product = 1;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view axis = text.substr(begin, end - begin);
    if (const auto equals = axis.find('='); equals != std::string_view::npos) axis = axis.substr(equals + 1);
    product *= positive(axis, "--mesh " + std::string(text));
    if (product > kMaxRanks) throw LaunchError("--mesh " + std::string(text) + ": more than 4096 ranks");
    begin = end + 1;
  }
  return product;
}

// The value of `flag` at argv[i] or after it (empty where nothing follows); moves i on.
std::optional<std::string_view> value_of(std::string_view flag, int argc, const char* const* argv, int& i) {
  const std::string_view arg = argv[i];
  if (arg.size() > flag.size() && arg.substr(0, flag.size()) == flag && arg[flag.size()] == '=') {
    return arg.substr(flag.size() + 1);
  }
  if (arg != flag) return std::nullopt;
  if (i + 1 >= argc || std::string_view(argv[i + 1]).starts_with("--")) return "";
  return argv[++i];
}

std::optional<int> number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  int value = 0;
  const std::string_view all(text);
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc{} || end != all.data() + all.size()) return std::nullopt;
  return value;
}

std::optional<LauncherEnvironment> from(const char* launcher, const char* rank, const char* size, bool mpi) {
  const auto r = number(rank), s = number(size);
  if (!r || !s || *s < 1 || *r < 0 || *r >= *s) return std::nullopt;
  return LauncherEnvironment{launcher, *r, *s, mpi};
}

}  // namespace

LaunchFlags parse_launch_flags(int argc, const char* const* argv) {
  LaunchFlags flags;
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (const auto ranks = value_of("--ranks", argc, argv, i)) {
      flags.ranks = static_cast<int>(positive(*ranks, "--ranks"));
    } else if (const auto mesh = value_of("--mesh", argc, argv, i)) {
      if (is_mesh(*mesh)) flags.mesh = mesh_size(*mesh);
    } else if (const auto backend = value_of("--backend", argc, argv, i)) {
      if (*backend == "local" || *backend == "mpi" || *backend == "nccl") flags.backend = *backend;
    }
  }
  if (flags.ranks != 0 && flags.mesh > flags.ranks) {
    throw LaunchError("--mesh needs " + std::to_string(flags.mesh) + " ranks, but --ranks gives " +
                      std::to_string(flags.ranks));
  }
  return flags;
}

// mpirun first: it may run inside a Slurm allocation. A Slurm step, not the allocation: a batch script's own process is
// one of one.
LauncherEnvironment launcher_environment() {
  if (auto e = from("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true)) return *e;
  if (auto e = from("mpirun", "PMI_RANK", "PMI_SIZE", true)) return *e;
  if (auto e = from("torchrun", "RANK", "WORLD_SIZE", false)) return *e;
  const char* step = std::getenv("SLURM_STEP_NUM_TASKS") != nullptr ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const bool pmix = std::getenv("PMIX_RANK") != nullptr;
  if (auto e = from("srun", "SLURM_PROCID", step, pmix)) return *e;
  return {};
}

}  // namespace dtensor
