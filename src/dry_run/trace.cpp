// Joins each wait to the collective that it completes, and stores names and groups once.
#include "dry_run/trace.h"

namespace dtensor::dry {

void TraceRecorder::add(StepTrace::Event event, const std::string& name) {
  const auto [known, added] = names_.try_emplace(name, static_cast<std::int32_t>(trace_.names.size()));
  if (added) trace_.names.push_back(name);
  event.name = known->second;
  trace_.events.push_back(event);
  if (memory_ == nullptr) return;
  trace_.memory.push_back(memory_->peak_by_kind());
  memory_->reset_peak();
}

std::int32_t TraceRecorder::group_of(const Event& event) {
  if (event.ranks.empty()) return -1;
  const auto [known, added] =
      groups_.try_emplace({event.axis, event.ranks}, static_cast<std::int32_t>(trace_.groups.size()));
  if (added) trace_.groups.push_back({event.axis, event.ranks});
  return known->second;
}

void TraceRecorder::add(const Event& event) {
  StepTrace::Event entry{.kind = StepTrace::Kind::collective, .group = group_of(event), .bytes = event.bytes};
  const std::tuple key(event.name, entry.group, event.sequence);
  if (event.kind == dtensor::Event::Kind::collective) {
    started_[key] = static_cast<std::int64_t>(trace_.events.size());
    return add(entry, event.name);
  }
  const auto started = started_.find(key);
  if (started == started_.end()) return;  // before the step, or a message, which has no number
  entry.kind = StepTrace::Kind::wait;
  entry.start = started->second;
  started_.erase(started);
  add(entry, event.name);
}

void TraceRecorder::clear() {
  trace_.events.clear();
  trace_.memory.clear();
  if (memory_ != nullptr) memory_->reset_peak();
  started_.clear();
}

}  // namespace dtensor::dry
