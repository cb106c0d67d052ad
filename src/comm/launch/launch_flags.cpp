// Parses `--ranks N`, `--mesh a=2,b=2` and `--backend NAME` (also with `=`). A program may define flags with these
// names: a `--mesh` file name and unknown `--backend` values are ignored here.
#include "comm/launch/launch_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

namespace dtensor {
namespace {

constexpr int kMaxRanks = 4096;  // per process
constexpr int kMaxSimulatedRanks = 1 << 20;

std::int64_t positive(std::string_view text, std::string_view flag) {
  const auto value = number(text);
  if (value && *value >= 1 && *value <= kMaxRanks) return *value;
  throw LaunchError(std::string(flag) + ": expected a number in [1, " + std::to_string(kMaxRanks) + "], got \"" +
                    std::string(text) + "\"");
}

// Splits at commas; each axis is `name=number` or a number.
std::vector<std::string_view> axes_of(std::string_view text) {
  std::vector<std::string_view> axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    axes.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return axes;
}

std::string_view size_of(std::string_view axis) { return axis.substr(axis.find('=') + 1); }

// Whether the text is a mesh shape: some axis is a number, `name=number`, or a name without its number.
bool is_mesh(std::string_view text) {
  const auto axes = axes_of(text);
  return std::any_of(axes.begin(), axes.end(), [](std::string_view axis) {
    const auto size = size_of(axis);
    return !axis.empty() && std::all_of(size.begin(), size.end(), [](char c) { return c >= '0' && c <= '9'; });
  });
}

std::int64_t mesh_size(std::string_view text) {
  std::int64_t product = 1;
  for (const auto axis : axes_of(text)) {
    product *= positive(size_of(axis), "--mesh " + std::string(text));
    if (product > kMaxRanks)
      throw LaunchError("--mesh " + std::string(text) + ": expected at most " + std::to_string(kMaxRanks) + " ranks");
  }
  return product;
}

// The value of `flag` at argv[i] or in the next argument (empty if there is none); advances i.
std::optional<std::string_view> value_of(std::string_view flag, int argc, const char* const* argv, int& i) {
  const std::string_view arg = argv[i];
  if (arg.size() > flag.size() && arg.substr(0, flag.size()) == flag && arg[flag.size()] == '=') {
    return arg.substr(flag.size() + 1);
  }
  if (arg != flag) return std::nullopt;
  if (i + 1 >= argc || std::string_view(argv[i + 1]).starts_with("--")) return "";
  return argv[++i];
}

// "N" or "N:r".
void parse_simulated(std::string_view text, DryRunRequest& which) {
  const auto colon = std::min(text.find(':'), text.size());
  const auto ranks = number(text.substr(0, colon));
  const auto rank = colon == text.size() ? std::optional(0) : number(text.substr(colon + 1));
  if (!ranks || !rank || *ranks < 1 || *ranks > kMaxSimulatedRanks || *rank < 0 || *rank >= *ranks) {
    throw LaunchError("--dtensor-simulate: expected RANKS or RANKS:RANK with at most " +
                      std::to_string(kMaxSimulatedRanks) + " ranks and a rank below them, got \"" + std::string(text) +
                      "\"");
  }
  which.ranks = *ranks, which.rank = *rank;
}

double parse_simulated_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  throw LaunchError("--dtensor-simulate-number: expected a number, got \"" + std::string(text) + "\"");
}

// Programs that refuse unknown flags can be run with the environment variables.
DryRunRequest dry_run_request(int argc, const char* const* argv) {
  DryRunRequest which;
  if (const auto text = environment_variable("DTENSOR_SIMULATE"); !text.empty()) parse_simulated(text, which);
  if (const auto text = environment_variable("DTENSOR_SIMULATE_NUMBER"); !text.empty()) {
    which.number = parse_simulated_number(text);
  }
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (const auto ranks = value_of("--dtensor-simulate", argc, argv, i))
      parse_simulated(*ranks, which);
    else if (const auto text = value_of("--dtensor-simulate-number", argc, argv, i)) {
      which.number = parse_simulated_number(*text);
    } else if (const auto backend = value_of("--backend", argc, argv, i)) {
      which.staging = *backend == "mpi" || *backend == "socket";
    }
  }
  return which;
}

}  // namespace

std::string environment_variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

LaunchFlags parse_launch_flags(int argc, const char* const* argv) {
  LaunchFlags flags;
  flags.simulated = dry_run_request(argc, argv);
  if (flags.simulated.ranks > 0) return flags;
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (const auto ranks = value_of("--ranks", argc, argv, i)) {
      flags.ranks = static_cast<int>(positive(*ranks, "--ranks"));
    } else if (const auto mesh = value_of("--mesh", argc, argv, i)) {
      if (is_mesh(*mesh)) flags.mesh = mesh_size(*mesh);
    } else if (const auto backend = value_of("--backend", argc, argv, i)) {
      if (*backend == "local" || *backend == "mpi" || *backend == "nccl" || *backend == "socket")
        flags.backend = *backend;
    }
  }
  if (flags.ranks != 0 && flags.mesh > flags.ranks) {
    throw LaunchError("--mesh needs " + std::to_string(flags.mesh) + " ranks, but --ranks gives " +
                      std::to_string(flags.ranks));
  }
  return flags;
}

}  // namespace dtensor
