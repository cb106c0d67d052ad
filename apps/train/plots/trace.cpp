// A trace of a run in Chrome's format.
#include "train/plots/trace.h"

#include <ATen/ATen.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>

#include <fstream>
#include <nlohmann/json.hpp>

#include "train/output/output.h"

namespace train {
namespace {

const char* category(dtensor::Event::Kind kind) {
  switch (kind) {
    case dtensor::Event::Kind::op:
      return "operator";
    case dtensor::Event::Kind::redistribute:
      return "redistribution";
    case dtensor::Event::Kind::collective:
      return "collective";
    case dtensor::Event::Kind::wait:
      return "wait";
    case dtensor::Event::Kind::contribution:
      break;
  }
  return "?";
}

// Rows of a rank, in the order of the viewer.
enum Row { kOperators, kActions, kSteps, kPhases, kModules };
constexpr const char* kRows[] = {"operators and collectives", "pipeline actions", "steps", "phases", "modules"};

// An id that all members of a collective compute alike, and that differs between collectives.
std::uint64_t meeting_of(const dtensor::Event& event) {
  const auto text = fmt::format("{} {} {} {}", event.name, event.axis, fmt::join(event.ranks, ","), event.sequence);
  return std::hash<std::string>{}(text) >> 12;  // A number that JSON readers represent exactly.
}

std::string process_name(int rank) {
  const nlohmann::json json = {
      {"ph", "M"}, {"pid", rank}, {"name", "process_name"}, {"args", {{"name", "rank " + std::to_string(rank)}}}};
  std::string text = json.dump();
  for (int row = kOperators; row <= kModules; ++row) {
    const nlohmann::json name = {
        {"ph", "M"}, {"pid", rank}, {"tid", row}, {"name", "thread_name"}, {"args", {{"name", kRows[row]}}}};
    text += ",\n" + name.dump();
  }
  return text;
}

at::Tensor to_bytes(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

// The text of every rank, on every rank.
std::vector<at::Tensor> gather(const dtensor::Communicator& world, const std::string& text) {
  std::vector<at::Tensor> sizes, texts;
  for (int rank = 0; rank < world.size(); ++rank) sizes.push_back(at::empty({1}, at::kLong));
  world.all_gather(sizes, at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong)).wait();
  for (const at::Tensor& size : sizes) texts.push_back(at::empty({size.item<std::int64_t>()}, at::kByte));
  world.all_gather(texts, to_bytes(text)).wait();
  return texts;
}

}  // namespace

Trace::Trace(const dtensor::Communicator& world)
    : world_(world),
      start_((world.barrier(), std::chrono::steady_clock::now())),
      memory_(std::int64_t{1} << 40),  // Read at each event, so it need not keep samples.
      listener_([this](const dtensor::Event& event) { add(event); }) {}

double Trace::microseconds(Time time) const { return std::chrono::duration<double, std::micro>(time - start_).count(); }

void Trace::add_json(const std::string& json) {
  slices_ += slices_.empty() ? "" : ",\n";
  slices_ += json;
}

void Trace::add_slice(int row, const std::string& name, Time begin, Time end) {
  const nlohmann::json json = {{"ph", "X"},
                               {"pid", world_.rank()},
                               {"tid", row},
                               {"name", name},
                               {"cat", kRows[row]},
                               {"ts", microseconds(begin)},
                               {"dur", microseconds(end) - microseconds(begin)}};
  add_json(json.dump());
}

// An arrow from the first member through the others to the last: from the first begin to the last end.
void Trace::add_flow(const dtensor::Event& event) {
  const bool first = event.ranks.front() == world_.rank(), last = event.ranks.back() == world_.rank();
  const auto at = first ? event.begin : last ? event.end : event.begin + (event.end - event.begin) / 2;
  nlohmann::json json = {{"ph", first  ? "s"
                                : last ? "f"
                                       : "t"},
                         {"pid", world_.rank()},
                         {"tid", static_cast<int>(kOperators)},
                         {"name", event.name},
                         {"cat", "collective"},
                         {"id", meeting_of(event)},
                         {"ts", microseconds(at)}};
  if (last) json["bp"] = "e";
  add_json(json.dump());
}

// Slices of an operator's nested calls lie within its time, so the viewer nests them.
void Trace::add(const dtensor::Event& event) {
  nlohmann::json json = {{"ph", "X"},
                         {"pid", world_.rank()},
                         {"tid", static_cast<int>(kOperators)},
                         {"name", event.name},
                         {"cat", category(event.kind)},
                         {"ts", microseconds(event.begin)},
                         {"dur", microseconds(event.end) - microseconds(event.begin)}};
  auto& args = json["args"] = nlohmann::json::object();
  if (event.bytes > 0) args["bytes received"] = event.bytes;
  if (!event.axis.empty()) args["mesh axis"] = event.axis;
  if (!event.module.empty()) args["module"] = event.module;
  if (!event.operands.empty()) args["operands"] = event.operands;
  add_json(json.dump());
  if (event.ranks.size() > 1) add_flow(event);
  const bool backward = event.phase == dtensor::Phase::backward;
  extend(phases_, backward ? "backward" : "forward", event);
  extend(modules_, event.module + (event.module.empty() || !backward ? "" : " (backward)"), event);
  const nlohmann::json memory = {{"ph", "C"},
                                 {"pid", world_.rank()},
                                 {"name", "memory beyond the start"},
                                 {"ts", microseconds(event.end)},
                                 {"args", {{"bytes", memory_.live()}}}};
  add_json(memory.dump());
}

void Trace::extend(std::vector<Span>& spans, const std::string& name, const dtensor::Event& event) {
  if (spans.empty() || spans.back().name != name) return spans.push_back({name, event.begin, event.end});
  spans.back().begin = std::min(spans.back().begin, event.begin);
  spans.back().end = std::max(spans.back().end, event.end);
}

// Forward operators after the last backward of a step belong to the optimizer.
void Trace::add_phases(const StepRecord& record, Time end) {
  std::size_t last = phases_.size();
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i].name == "backward" && phases_[i].begin < end) last = i;
  }
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    const auto from = std::max(phases_[i].begin, record.start), to = std::min(phases_[i].end, end);
    if (from < to) add_slice(kPhases, i > last ? "optimizer" : phases_[i].name, from, to);
  }
}

void Trace::add(const StepRecord& record) {
  const auto after = [](Time time, double seconds) {
    return time + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
  };
  const auto end = after(record.start, record.seconds);
  add_slice(kSteps, "step " + std::to_string(record.step), record.start, end);
  add_phases(record, end);
  for (const auto& [action, from, to] : record.actions) {
    add_slice(kActions, dtensor::pipeline::to_string(action), after(record.began, from), after(record.began, to));
  }
}

void Trace::write(const std::string& path) {
  for (const auto& span : modules_) {
    if (!span.name.empty()) add_slice(kModules, span.name, span.begin, span.end);
  }
  const std::string mine = process_name(world_.rank()) + (slices_.empty() ? "" : ",\n") + slices_;
  const std::vector<at::Tensor> texts = gather(world_, mine);
  if (world_.rank() != 0) return;
  std::ofstream out(path, std::ios::trunc);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (rank > 0) out << ",\n";
    out.write(static_cast<const char*>(texts[rank].const_data_ptr()), texts[rank].numel());
  }
  out << "\n]}\n";
  close_written(out, path);
}

}  // namespace train
