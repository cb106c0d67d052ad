// The report of a dry run as a table and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "dtensor/dry_run.h"
#include "internal/bytes_text.h"

namespace dtensor {
namespace {

constexpr std::size_t kHolders = 8;  // in the table

const char* phase_name(Phase phase) { return phase == Phase::forward ? "forward" : "backward"; }

std::string place(const std::string& module, Phase phase) {
  return fmt::format("{}, {}", module.empty() ? "outside of modules" : module, phase_name(phase));
}

std::int64_t total_flops(const DryRunReport& report) {
  std::int64_t flops = 0;
  for (const auto& [name, count] : report.operators) flops += count.flops;
  return flops;
}

// Of one rank.
std::int64_t highest_peak(const DryRunReport& report) { return std::max(report.peak.bytes, report.peak_before.bytes); }

const DryRunReport& largest_rank(const DryRunReport& report) {
  const auto* largest = &report;
  for (const auto& peer : report.peers) {
    if (highest_peak(peer) > highest_peak(*largest)) largest = &peer;
  }
  return *largest;
}

}  // namespace

std::int64_t DryRunReport::peak_bytes() const { return highest_peak(largest_rank(*this)); }

bool DryRunReport::fits(std::int64_t bytes) const { return peak_bytes() <= bytes; }

std::string DryRunReport::largest() const {
  const auto& report = largest_rank(*this);
  if (report.peak_before.bytes > report.peak.bytes) {
    return fmt::format("before the step, in {}", place(report.peak_before.module, report.peak_before.phase));
  }
  const auto kind = std::max_element(report.peak_by_kind.begin(), report.peak_by_kind.end());
  auto text =
      fmt::format("{} {}", to_string(static_cast<MemoryKind>(kind - report.peak_by_kind.begin())), bytes_text(*kind));
  if (report.holders.empty()) return text;
  const auto& holder = report.holders.front();
  return text + fmt::format("; {} in {}", bytes_text(holder.bytes), place(holder.module, holder.phase));
}

std::string DryRunReport::table(std::optional<std::int64_t> limit) const {
  std::string text = fmt::format("rank {} of {}\n", rank, ranks);
  text +=
      fmt::format("  {:<18} {:>10}  in {}\n", "peak memory", bytes_text(peak.bytes), place(peak.module, peak.phase));
  for (std::size_t kind = 0; kind < std::tuple_size_v<MemoryByKind>; ++kind) {
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
    const auto missing = peak_bytes() - *limit;
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
  for (std::size_t kind = 0; kind < std::tuple_size_v<MemoryByKind>; ++kind) {
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
