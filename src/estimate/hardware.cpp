// Times of operators and collectives on given hardware, and its JSON table.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
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
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return "float8";
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

bool is_positive(double number) { return number > 0 && std::isfinite(number); }

// A name of rates that no operator or kind has would be ignored: "prodct bfloat16", "product bf16".
void check_rate_name(const std::string& name) {
  const auto end = name.find(' ');
  const std::string op = name.substr(0, end), dtype = end == std::string::npos ? "other" : name.substr(end + 1);
  bool is_known = op.find("::") != std::string::npos, is_dtype = dtype == "other";
  for (const auto kind : {StepTrace::Kind::product, StepTrace::Kind::attention, StepTrace::Kind::norm,
                          StepTrace::Kind::elementwise, StepTrace::Kind::host, StepTrace::Kind::transfer}) {
    is_known = is_known || op == kind_name(kind);
  }
  for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble, at::kFloat, at::kFloat8_e4m3fn}) {
    is_dtype = is_dtype || dtype == dtype_name(type);
  }
  TORCH_CHECK(is_known && is_dtype,
              "hardware table: expected rates of product, attention, norm, elementwise, host, transfer or an ",
              "operator such as aten::mm, alone or with bfloat16, float16, float32, float64, float8 or other; got '",
              name, "'");
}

void check_curve(const std::string& name, const Curve& curve) {
  double last = 0;
  for (const auto& point : curve) {
    TORCH_CHECK(is_positive(point.size) && is_positive(point.rate) && point.size > last, "hardware table: rates of '",
                name, "': expected positive rates of increasing sizes, got [", point.size, ", ", point.rate,
                "] after size ", last);
    last = point.size;
  }
}

void check_rates(const std::string& name, const Curve& curve) {
  check_rate_name(name);
  check_curve(name, curve);
}

void check_levels(const std::vector<HardwareModel::Level>& levels) {
  TORCH_CHECK(!levels.empty(), "hardware table: expected at least one level of links, got none");
  std::int64_t inner = 0;
  for (const auto& level : levels) {
    TORCH_CHECK(is_positive(level.bandwidth) && level.latency >= 0 && std::isfinite(level.latency),
                "hardware table: level '", level.name,
                "': expected a positive bandwidth and a latency of at least 0, got ", level.bandwidth, " and ",
                level.latency);
    check_curve(level.name, level.bandwidths);
    TORCH_CHECK(level.ranks > inner, "hardware table: level '", level.name, "': expected more ranks than the ", inner,
                " of the level before, got ", level.ranks);
    inner = level.ranks;
  }
}

void check(const HardwareModel& hardware) {
  for (const auto& [name, curve] : hardware.rates) check_rates(name, curve);
  check_levels(hardware.levels);
  for (const double number : {hardware.memory_bytes, hardware.memory_reserve, hardware.operator_seconds}) {
    TORCH_CHECK(number >= 0 && std::isfinite(number),
                "hardware table: expected memory_bytes, memory_reserve and operator_seconds of at least 0, got ",
                number);
  }
  for (const auto& [dtype, flops] : hardware.peak_flops) {
    TORCH_CHECK(is_positive(flops), "hardware table: peak_flops of ", dtype, ": expected a positive number, got ",
                flops);
  }
}

Curve parse_curve(const Json& points) {
  Curve curve;
  for (const auto& point : points) curve.push_back({point.at(0), point.at(1)});
  return curve;
}

Json json_of(const Curve& curve) {
  auto points = Json::array();
  for (const auto& point : curve) points.push_back({point.size, point.rate});
  return points;
}

// A misspelt field would have its default.
void check_fields(const Json& json, const std::vector<std::string>& known) {
  for (const auto& [field, value] : json.items()) {
    TORCH_CHECK(std::find(known.begin(), known.end(), field) != known.end(), "hardware table: expected the fields ",
                c10::Join(", ", known), "; got '", field, "'");
  }
}

}  // namespace

HardwareModel HardwareModel::parse(const std::string& text) {
  HardwareModel hardware;
  try {
    const Json json = Json::parse(text);
    check_fields(json, {"name", "rates", "operator_seconds", "peak_flops", "memory_bytes", "memory_reserve",
                        "asynchronous", "levels"});
    hardware.name = json.at("name");
    for (const auto& [name, points] : json.at("rates").items()) {
      hardware.rates[name] = parse_curve(points);
    }
    hardware.operator_seconds = json.value("operator_seconds", 0.0);
    hardware.peak_flops = json.value("peak_flops", std::map<std::string, double>());
    hardware.memory_bytes = json.value("memory_bytes", 0.0);
    hardware.memory_reserve = json.value("memory_reserve", 0.0);
    hardware.asynchronous = json.value("asynchronous", false);
    for (const auto& level : json.at("levels")) {
      check_fields(level, {"name", "ranks", "latency", "bandwidth"});
      const auto& bandwidth = level.at("bandwidth");
      const auto bandwidths = bandwidth.is_array() ? parse_curve(bandwidth) : Curve{};
      const double largest = bandwidths.empty() ? bandwidth.get<double>() : bandwidths.back().rate;
      hardware.levels.push_back({level.at("name"), level.at("ranks"), level.at("latency"), largest, bandwidths});
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
  for (const auto& [key, curve] : rates) out["rates"][key] = json_of(curve);
  out["operator_seconds"] = operator_seconds;
  out["peak_flops"] = peak_flops;
  out["memory_bytes"] = memory_bytes;
  out["memory_reserve"] = memory_reserve;
  out["asynchronous"] = asynchronous;
  for (const auto& l : levels) {
    const auto bandwidth = l.bandwidths.empty() ? Json(l.bandwidth) : json_of(l.bandwidths);
    out["levels"].push_back({{"name", l.name}, {"ranks", l.ranks}, {"latency", l.latency}, {"bandwidth", bandwidth}});
  }
  return out.dump(1);
}

std::string HardwareModel::rate_name(const std::string& op, at::ScalarType dtype) {
  return op + " " + dtype_name(dtype);
}

double HardwareModel::seconds(const StepTrace::Event& op, const std::string& name) const {
  const auto bytes = static_cast<double>(op.bytes), flops = static_cast<double>(op.flops);
  const bool of_host = op.kind == StepTrace::Kind::host || op.kind == StepTrace::Kind::transfer;
  const auto* own = of_host ? nullptr : find_curve(*this, name, op.dtype);  // an operator's rates are the device's
  const auto time = [&](double size, StepTrace::Kind kind, const Curve* curve) {
    return size > 0 ? size / rate_at(curve != nullptr ? *curve : curve_of(*this, kind, op.dtype), size) : 0;
  };
  if (op.flops == 0 || of_host) return operator_seconds + time(bytes, op.kind, own);
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
  double latency = 0, bandwidth = std::numeric_limits<double>::infinity();  // of a path, which passes the levels below
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const double received = static_cast<double>(bytes);
    const auto& by_size = levels[l].bandwidths;
    latency = std::max(latency, levels[l].latency);
    bandwidth = std::min(bandwidth, by_size.empty() ? levels[l].bandwidth : rate_at(by_size, received));
    const double within = l + 1 == levels.size() ? all : members_within(ranks, levels[l].ranks);
    if (within <= below) continue;
    latency_sum += rounds * latency * std::ceil(std::log2(within / below));
    const double sharing = collective == "all_to_all" ? 1 : below;
    const double moved = static_cast<double>(bytes) * (all - below) / (all - 1) / sharing;
    transfer = std::max(transfer, moved / bandwidth);
    below = within;
  }
  return latency_sum + transfer;
}

}  // namespace dtensor
