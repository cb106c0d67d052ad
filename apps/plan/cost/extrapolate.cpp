#include "plan/cost/extrapolate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plan {

using namespace dtensor;

namespace {

double total(const MemoryByKind& memory) { return std::accumulate(memory.begin(), memory.end(), 0.0); }

// The positions of the marks, and the end.
std::vector<std::size_t> bounds_of(const StepTrace& trace) {
  std::vector<std::size_t> bounds;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (i == 0 || trace.events[i].kind == StepTrace::Kind::mark) bounds.push_back(i);
  }
  bounds.push_back(trace.events.size());
  return bounds;
}

// Equal moments of two runs, whose events are equal but for the runs of events that `more` has in addition.
class Moments {
 public:
  Moments(const StepTrace& few, const StepTrace& more, double blocks) : few_(few), more_(more), blocks_(blocks) {
    for (const auto& name : more.names) {
      const auto place = std::find(few.names.begin(), few.names.end(), name) - few.names.begin();
      names_.push_back(static_cast<std::int32_t>(place));
    }
  }

  // The highest memory over all of them.
  MemoryByKind highest() {
    const auto few = bounds_of(few_), more = bounds_of(more_);
    TORCH_CHECK(few.size() == more.size(), "extrapolate: expected the same marks in both runs, got ", few.size() - 1,
                " and ", more.size() - 1);
    for (std::size_t s = 0; s + 1 < few.size(); ++s) add_segment(few[s], few[s + 1], more[s], more[s + 1]);
    return highest_;
  }

 private:
  bool same(std::size_t i, std::size_t j) const {
    const auto &a = few_.events[i], &b = more_.events[j];
    return a.kind == b.kind && a.name == names_[static_cast<std::size_t>(b.name)];
  }

  // The events of [few, few_end) in order, each with its equal: shifted by the events in addition before it.
  void add_segment(std::size_t few, std::size_t few_end, std::size_t more, std::size_t more_end) {
    std::size_t i = few, shift = more - few;
    while (i < few_end) {
      std::size_t end = i;
      while (end < few_end && end + shift < more_end && same(end, end + shift)) ++end;
      const auto added = end < few_end ? added_events(end, few_end, end + shift, more_end) : 0;
      const auto middle = end < few_end ? middle_of_block(i, end, shift + added) : end;
      for (; i < middle; ++i) add(few_.memory[i], more_.memory[i + shift]);
      if (end == few_end) return;
      if (added == 0) return add(highest_of(few_, i, few_end), highest_of(more_, i + shift, more_end));
      shift += added;
    }
  }

  // The number of events after which `more` goes on as `few` does, for the longest time; 0: it does not.
  std::size_t added_events(std::size_t i, std::size_t few_end, std::size_t j, std::size_t more_end) const {
    std::size_t longest = 0, added = 0;
    for (std::size_t start = j + 1; start + longest < more_end; ++start) {
      std::size_t n = 0;
      while (i + n < few_end && start + n < more_end && same(i + n, start + n)) ++n;
      if (n > longest) longest = n, added = start - j;
    }
    return added;
  }

  // Blocks repeat, so the events before `end` also equal those with the next shift. The middle is farthest from what
  // only the first or the last blocks do, such as gathering ahead.
  std::size_t middle_of_block(std::size_t begin, std::size_t end, std::size_t next_shift) const {
    std::size_t first = end;
    while (first > begin && same(first - 1, first - 1 + next_shift)) --first;
    return first + (end - first) / 2;
  }

  static MemoryByKind highest_of(const StepTrace& trace, std::size_t begin, std::size_t end) {
    MemoryByKind highest = {};
    for (; begin < end; ++begin) {
      if (total(trace.memory[begin]) > total(highest)) highest = trace.memory[begin];
    }
    return highest;
  }

  void add(const MemoryByKind& few, const MemoryByKind& more) {
    MemoryByKind memory;
    for (std::size_t k = 0; k < std::tuple_size_v<MemoryByKind>; ++k) {
      const auto a = static_cast<double>(few[k]), b = static_cast<double>(more[k]);
      memory[k] = std::llround(a + blocks_ * (b - a));
    }
    if (total(memory) > total(highest_)) highest_ = memory;
  }

  const StepTrace &few_, &more_;
  double blocks_;
  std::vector<std::int32_t> names_;  // of `more`: the number of the name in `few`
  MemoryByKind highest_ = {};
};

}  // namespace

double StageResult::peak() const { return total(memory); }

namespace {

StepEstimate extrapolate_time(const StepEstimate& a, const StepEstimate& b, double blocks) {
  const auto mix = [&](double x, double y) { return x + blocks * (y - x); };
  const auto mix_all = [&](std::map<std::string, double> x, const std::map<std::string, double>& y) {
    for (const auto& [name, value] : y) x[name] = mix(x[name], value);
    return x;
  };
  StepEstimate time = a;
  time.seconds = mix(a.seconds, b.seconds);
  time.compute = mix(a.compute, b.compute);
  time.communication = mix(a.communication, b.communication);
  time.exposed = mix(a.exposed, b.exposed);
  time.compute_by_kind = mix_all(a.compute_by_kind, b.compute_by_kind);
  time.exposed_by_axis = mix_all(a.exposed_by_axis, b.exposed_by_axis);
  time.communication_by_axis = mix_all(a.communication_by_axis, b.communication_by_axis);
  for (std::size_t m = 0; m < time.marks.size(); ++m) time.marks[m].second = mix(a.marks[m].second, b.marks[m].second);
  return time;
}

}  // namespace

StageResult extrapolate_times(const StageResult& few, const StageResult& more, double blocks) {
  StageResult result;
  result.time = extrapolate_time(few.time, more.time, blocks);
  result.compute = extrapolate_time(few.compute, more.compute, blocks);
  result.compute_and_experts = extrapolate_time(few.compute_and_experts, more.compute_and_experts, blocks);
  result.weights = few.weights + blocks * (more.weights - few.weights);
  return result;
}

StageResult extrapolate(const StageResult& few, const StageResult& more, double blocks) {
  auto result = extrapolate_times(few, more, blocks);
  result.memory = Moments(few.trace, more.trace, blocks).highest();
  return result;
}

}  // namespace plan
