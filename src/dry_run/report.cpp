// The report of a dry run as a table and as JSON.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dtensor/dry_run.h"

namespace dtensor {
namespace {

constexpr std::size_t kHolders = 8;  // in the table

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

const char* phase_name(Phase phase) { return phase == Phase::forward ? "forward" : "backward"; }

std::string place(const std::string& module, Phase phase) {
  return fmt::format("{}, {}", module.empty() ? "outside of modules" : module, phase_name(phase));
}

std::int64_t total_flops(const DryRunReport& report) {
  std::int64_t flops = 0;
  for (const auto& [name, count] : report.operators) flops += count.flops;
  return flops;
}

std::int64_t highest_peak(const DryRunReport& report) { return std::max(report.peak.bytes, report.peak_before.bytes); }

}  // namespace

bool DryRunReport::fits(std::int64_t bytes) const {
  const auto fit = [&](const DryRunReport& report) { return highest_peak(report) <= bytes; };
  return fit(*this) && std::all_of(peers.begin(), peers.end(), fit);
}

std::string DryRunReport::table(std::optional<std::int64_t> limit) const {
  std::string text = fmt::format("rank {} of {}\n", rank, ranks);
  text +=
      fmt::format("  {:<18} {:>10}  in {}\n", "peak memory", bytes_text(peak.bytes), place(peak.module, peak.phase));
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    text +=
        fmt::format("    {:<16} {:>10}\n", to_string(static_cast<MemoryKind>(kind)), bytes_text(peak_by_kind[kind]));
  }
  if (peak_before.bytes > 0) {
    text += fmt::format("  {:<18} {:>10}  in {}\n", "before this step", bytes_text(peak_before.bytes),
                        place(peak_before.module, peak_before.phase));
  }
  for (const DryRunReport& peer : peers) {
    text += fmt::format("  {:<18} {:>10}  in {}\n", fmt::format("peak of rank {}", peer.rank),
                        bytes_text(highest_peak(peer)), place(peer.peak.module, peer.peak.phase));
  }
  if (limit) {
    auto most = highest_peak(*this);
    for (const DryRunReport& peer : peers) most = std::max(most, highest_peak(peer));
    const auto missing = most - *limit;
    text += fmt::format("  {:<18} {:>10}  {}\n", "limit", bytes_text(*limit),
                        missing > 0 ? "does NOT fit: " + bytes_text(missing) + " too much" : "fits");
  }
  text += "  allocated at the peak in\n";
  for (std::size_t i = 0; i < std::min(kHolders, holders.size()); ++i) {
    text +=
        fmt::format("    {:<16} {:>10}\n", place(holders[i].module, holders[i].phase), bytes_text(holders[i].bytes));
  }
  text += "  collectives: calls, bytes received\n";
  for (const auto& [key, count] : collectives) {
    text += fmt::format("    {:<16} {:>10}  {} {}\n", key.first, bytes_text(count.bytes), count.calls,
                        key.second.empty() ? "" : "on " + key.second);
  }
  if (const auto flops = total_flops(*this); flops > 0) {
    text += fmt::format("  {:<18} {:>10.3g}\n", "FLOPs of products", static_cast<double>(flops));
  }
  return text;
}

std::string DryRunReport::json() const {
  nlohmann::ordered_json out = {{"rank", rank}, {"ranks", ranks}, {"peak_bytes", peak.bytes}};
  out["peak_module"] = peak.module;
  out["peak_phase"] = phase_name(peak.phase);
  out["peak_bytes_before"] = peak_before.bytes;
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    out["peak_by_kind"][to_string(static_cast<MemoryKind>(kind))] = peak_by_kind[kind];
  }
  out["holders"] = nlohmann::json::array();
  for (const auto& holder : holders) {
    out["holders"].push_back({{"module", holder.module}, {"phase", phase_name(holder.phase)}, {"bytes", holder.bytes}});
  }
  out["collectives"] = nlohmann::json::array();
  for (const auto& [key, count] : collectives) {
    out["collectives"].push_back(
        {{"kind", key.first}, {"axis", key.second}, {"calls", count.calls}, {"bytes", count.bytes}});
  }
  out["operators"] = nlohmann::json::object();
  for (const auto& [name, count] : operators) {
    out["operators"][name] = {{"calls", count.calls}, {"flops", count.flops}, {"bytes", count.bytes}};
  }
  for (const DryRunReport& peer : peers) out["peers"].push_back(nlohmann::ordered_json::parse(peer.json()));
  return out.dump(2);
}

}  // namespace dtensor
