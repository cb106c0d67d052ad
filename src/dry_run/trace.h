// Records the events of a step of a dry run in order, each in 48 bytes.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/dry_run.h"
#include "dtensor/events.h"

namespace dtensor::dry {

class TraceRecorder {
 public:
  void add(StepTrace::Event event, const std::string& name);
  // A collective or a wait.
  void add(const Event& event);
  // The timeline whose peaks the events have from now on; it must live until the last event.
  void watch(MemoryTimeline& memory) { memory_ = &memory; }
  // Forgets the events; names and groups stay.
  void clear();
  StepTrace take() { return std::move(trace_); }

 private:
  std::int32_t group_of(const Event& event);

  StepTrace trace_;
  MemoryTimeline* memory_ = nullptr;
  std::map<std::string, std::int32_t> names_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::int32_t> groups_;
  // Started collectives by name, group and sequence number.
  std::map<std::tuple<std::string, std::int32_t, std::uint64_t>, std::int64_t> started_;
};

}  // namespace dtensor::dry
