// The replayed step for people: a Chrome trace, and a plot of the memory.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "chart/chart.h"
#include "estimate/kind_name.h"
#include "estimate/replay.h"
#include "internal/bytes_text.h"

namespace dtensor {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicroseconds = 1e6;

// One rank's rows: 0 for operators and waits, 1 for marks, and one for each mesh axis.
class RankRows {
 public:
  RankRows(const DryRunReport& report, const HardwareModel& hardware, Json& events)
      : report_(report), timeline_(replay(report.trace, hardware)), events_(events) {}

  void add() {
    add_name({{"name", "process_name"}, {"pid", report_.rank}}, fmt::format("rank {}", report_.rank));
    row_of("operators"), row_of("marks");
    for (const auto& slice : timeline_.slices) add(slice);
    add_marks();
    add_memory();
  }

 private:
  void add_name(Json event, const std::string& name) {
    event["ph"] = "M";
    event["args"] = {{"name", name}};
    events_.push_back(std::move(event));
  }

  int row_of(const std::string& stream) {
    const auto [row, added] = rows_.try_emplace(stream, static_cast<int>(rows_.size()));
    if (added) add_name({{"name", "thread_name"}, {"pid", report_.rank}, {"tid", row->second}}, stream);
    return row->second;
  }

  Json& add_slice(int row, const std::string& name, const char* category, double begin, double end) {
    return events_.emplace_back(Json{{"ph", "X"},
                                     {"pid", report_.rank},
                                     {"tid", row},
                                     {"name", name},
                                     {"cat", category},
                                     {"ts", begin * kMicroseconds},
                                     {"dur", (end - begin) * kMicroseconds}});
  }

  void add(const ReplaySlice& slice) {
    const int row = row_of(slice.stream.empty() ? "operators" : "collectives on " + slice.stream);
    if (slice.wait) return void(add_slice(row, "wait: " + slice.name, "wait", slice.begin, slice.end));
    const auto& event = report_.trace.events[static_cast<std::size_t>(slice.event)];
    const bool collective = event.kind == StepTrace::Kind::collective;
    auto& json = add_slice(row, slice.name, collective ? "collective" : kind_name(event.kind), slice.begin, slice.end);
    json["args"] = {{"bytes", event.bytes}};
    if (event.flops > 0) json["args"]["FLOPs"] = event.flops;
  }

  void add_marks() {
    std::vector<std::pair<std::string, double>> marks;
    for (std::size_t i = 0; i < timeline_.times.size(); ++i) {
      const auto& event = report_.trace.events[i];
      if (event.kind != StepTrace::Kind::mark) continue;
      marks.emplace_back(report_.trace.names[static_cast<std::size_t>(event.name)], timeline_.times[i]);
    }
    for (std::size_t m = 0; m < marks.size(); ++m) {
      const double end = m + 1 < marks.size() ? marks[m + 1].second : timeline_.estimate.seconds;
      if (end > marks[m].second) add_slice(row_of("marks"), marks[m].first, "mark", marks[m].second, end);
    }
  }

  void add_memory() {
    for (std::size_t i = 0; i < report_.trace.memory.size(); ++i) {
      const auto& memory = report_.trace.memory[i];
      if (i > 0 && memory == report_.trace.memory[i - 1]) continue;
      Json bytes;
      for (std::size_t k = 0; k < std::tuple_size_v<MemoryByKind>; ++k)
        bytes[to_string(static_cast<MemoryKind>(k))] = memory[k];
      events_.push_back({{"ph", "C"},
                         {"pid", report_.rank},
                         {"name", "memory"},
                         {"ts", timeline_.times[i] * kMicroseconds},
                         {"args", bytes}});
    }
  }

  const DryRunReport& report_;
  const ReplayTimeline timeline_;
  Json& events_;
  std::map<std::string, int> rows_;
};

double total(const MemoryByKind& memory) {
  return std::accumulate(memory.begin(), memory.end(), 0.0,
                         [](double sum, std::int64_t bytes) { return sum + static_cast<double>(bytes); });
}

// Events whose memory differs visibly from that of the one before.
std::vector<std::size_t> visible(const std::vector<MemoryByKind>& memory, double peak) {
  std::vector<std::size_t> points;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const bool near = !points.empty() && std::abs(total(memory[i]) - total(memory[points.back()])) < 0.002 * peak;
    if (!near || i + 1 == memory.size()) points.push_back(i);
  }
  return points;
}

ChartPanel memory_panel(const DryRunReport& report, const HardwareModel& hardware) {
  const auto timeline = replay(report.trace, hardware);
  const auto& memory = report.trace.memory;
  ChartPanel panel{.title = fmt::format("rank {}: peak {}, step {:.3g} ms", report.rank, bytes_text(report.peak.bytes),
                                        1e3 * timeline.estimate.seconds),
                   .x_label = "estimated time of the step, ms",
                   .y_label = "memory, MB",
                   .y_low = 0};
  for (std::size_t k = 0; k < std::tuple_size_v<MemoryByKind>; ++k) {
    ChartSeries area{.name = to_string(static_cast<MemoryKind>(k)), .style = ChartSeries::Style::area};
    for (const auto i : visible(memory, static_cast<double>(report.peak.bytes))) {
      area.x.push_back(1e3 * timeline.times[i]);
      area.y.push_back(1e-6 * static_cast<double>(memory[i][k]));
    }
    panel.series.push_back(std::move(area));
  }
  return panel;
}

}  // namespace

std::string step_chrome_trace(const DryRunReport& report, const HardwareModel& hardware) {
  Json events = Json::array();
  RankRows(report, hardware, events).add();
  for (const auto& peer : report.peers) RankRows(peer, hardware, events).add();
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

std::string step_memory_svg(const DryRunReport& report, const HardwareModel& hardware) {
  TORCH_CHECK(!report.trace.memory.empty(), "step_memory_svg: expected a report with the memory at each event; set ",
              "DryRunOptions::trace and trace_memory");
  Chart chart{.panels = {memory_panel(report, hardware)}};
  for (const auto& peer : report.peers) chart.panels.push_back(memory_panel(peer, hardware));
  return to_svg(chart);
}

}  // namespace dtensor
