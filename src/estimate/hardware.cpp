// Times of operators and collectives on given hardware, and its JSON table.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dtensor/estimate.h"
#include "estimate/kind_name.h"

namespace dtensor {
namespace {

using Json = nlohmann::ordered_json;
using Curve = std::vector<HardwareModel::Point>;

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    default:
      return "other";
  }
}

// Points are sorted by size. Outside of the points the rate is that of the nearest one.
double rate_at(const Curve& curve, double size) {
  const auto above = std::find_if(curve.begin(), curve.end(), [&](const auto& p) { return p.size >= size; });
  if (above == curve.begin()) return above->rate;
  if (above == curve.end()) return curve.back().rate;
  const auto& below = *(above - 1);
  const double share = std::log(size / below.size) / std::log(above->size / below.size);
  return below.rate * std::pow(above->rate / below.rate, share);
}

const Curve* find_curve(const HardwareModel& hardware, const std::string& name, at::ScalarType dtype) {
  for (const auto& key : {HardwareModel::rate_name(name, dtype), name}) {
    const auto found = hardware.rates.find(key);
    if (found != hardware.rates.end() && !found->second.empty()) return &found->second;
  }
  return nullptr;
}

const Curve& curve_of(const HardwareModel& hardware, StepTrace::Kind kind, at::ScalarType dtype) {
  if (const auto* found = find_curve(hardware, kind_name(kind), dtype)) return *found;
  TORCH_CHECK(false, "hardware table '", hardware.name, "': expected rates of '", kind_name(kind), " ",
              dtype_name(dtype), "' or '", kind_name(kind), "'; measure them with `plan calibrate`");
}

void check(const HardwareModel& hardware) {
  TORCH_CHECK(!hardware.levels.empty(), "hardware table '", hardware.name,
              "': expected at least one level of links, got none");
  for (const auto& [name, curve] : hardware.rates) {
    for (const auto& point : curve) {
      TORCH_CHECK(point.size > 0 && point.rate > 0, "hardware table '", hardware.name, "', rates of '", name,
                  "': expected a positive size and rate, got [", point.size, ", ", point.rate, "]");
    }
  }
  for (const auto& level : hardware.levels) {
    TORCH_CHECK(level.bandwidth > 0 && level.latency >= 0 && level.ranks >= 1, "hardware table '", hardware.name,
                "', level '", level.name, "': expected a positive bandwidth and number of ranks, got ", level.bandwidth,
                " and ", level.ranks);
  }
}

}  // namespace

HardwareModel HardwareModel::parse(const std::string& text) {
  HardwareModel hardware;
  try {
    const Json json = Json::parse(text);
    hardware.name = json.at("name");
    for (const auto& [name, points] : json.at("rates").items()) {
      for (const auto& point : points) hardware.rates[name].push_back({point.at(0), point.at(1)});
    }
    hardware.operator_seconds = json.value("operator_seconds", 0.0);
    hardware.peak_flops = json.value("peak_flops", std::map<std::string, double>());
    hardware.memory_bytes = json.value("memory_bytes", 0.0);
    hardware.asynchronous = json.value("asynchronous", false);
    for (const auto& level : json.at("levels")) {
      hardware.levels.push_back({level.at("name"), level.at("ranks"), level.at("latency"), level.at("bandwidth")});
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, "not a hardware table: ", error.what());
  }
  check(hardware);
  return hardware;
}

HardwareModel HardwareModel::read(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);  // reading a device or a pipe may never end
  std::ifstream file(regular ? path : "");
  TORCH_CHECK(file, "cannot read the hardware table ", path, ": expected a ", regular ? "readable" : "regular",
              " file; `plan calibrate --out FILE` measures one");
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return parse(text.str());
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, path, ": ", error.what_without_backtrace());
  }
}

std::string HardwareModel::json() const {
  Json out = {{"name", name}, {"rates", Json::object()}};
  for (const auto& [key, curve] : rates) {
    for (const auto& point : curve) out["rates"][key].push_back({point.size, point.rate});
  }
  out["operator_seconds"] = operator_seconds;
  out["peak_flops"] = peak_flops;
  out["memory_bytes"] = memory_bytes;
  out["asynchronous"] = asynchronous;
  for (const auto& l : levels) {
    out["levels"].push_back({{"name", l.name}, {"ranks", l.ranks}, {"latency", l.latency}, {"bandwidth", l.bandwidth}});
  }
  return out.dump(1);
}

std::string HardwareModel::rate_name(const std::string& op, at::ScalarType dtype) {
  return op + " " + dtype_name(dtype);
}

double HardwareModel::seconds(const StepTrace::Event& op, const std::string& name) const {
  const auto bytes = static_cast<double>(op.bytes), flops = static_cast<double>(op.flops);
  const auto* own = find_curve(*this, name, op.dtype);
  const auto time = [&](double size, StepTrace::Kind kind, const Curve* curve) {
    return size > 0 ? size / rate_at(curve != nullptr ? *curve : curve_of(*this, kind, op.dtype), size) : 0;
  };
  if (op.flops == 0) return operator_seconds + time(bytes, op.kind, own);
  return operator_seconds + std::max(time(flops, op.kind, own), time(bytes, StepTrace::Kind::elementwise, nullptr));
}

namespace {

// The members of a group that are in the same unit of `size` consecutive ranks as the first one.
double members_within(const std::vector<std::int64_t>& ranks, std::int64_t size) {
  const auto unit = ranks.front() / size;
  return static_cast<double>(std::count_if(ranks.begin(), ranks.end(), [&](auto r) { return r / size == unit; }));
}

}  // namespace

double HardwareModel::seconds(const std::string& collective, const std::vector<std::int64_t>& ranks,
                              std::int64_t bytes) const {
  if (ranks.size() < 2) return 0;
  const auto all = static_cast<double>(ranks.size());
  const double rounds = collective == "all_reduce" ? 2 : 1;
  double latency_sum = 0, transfer = 0, below = 1;
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const double within = l + 1 == levels.size() ? all : members_within(ranks, levels[l].ranks);
    if (within <= below) continue;
    latency_sum += rounds * levels[l].latency * std::ceil(std::log2(within / below));
    const double sharing = collective == "all_to_all" ? 1 : below;
    const double moved = static_cast<double>(bytes) * (within - below) / (all - 1) / sharing;
    transfer = std::max(transfer, moved / levels[l].bandwidth);
    below = within;
  }
  return latency_sum + transfer;
}

}  // namespace dtensor
