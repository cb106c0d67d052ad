#include "plan/measure/operator_times.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <set>

namespace plan {

using namespace dtensor;

namespace {

using Clock = std::chrono::steady_clock;

// Measures the outermost calls of some operators on one thread.
class Stopwatch {
 public:
  explicit Stopwatch(std::set<std::string> names) : names_(std::move(names)) {
    current = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
  }
  ~Stopwatch() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Seconds of the calls of each operator in order, since the last time.
  std::map<std::string, std::vector<double>> take() { return std::exchange(seconds_, {}); }

 private:
  struct Call final : at::ObserverContext {
    bool timed = false;
    Clock::time_point start;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current == nullptr || !current->names_.contains(call.name())) return nullptr;
    auto context = std::make_unique<Call>();
    context->timed = current->depth_++ == 0;
    context->start = Clock::now();
    return context;
  }

  static void end(const at::RecordFunction& call, at::ObserverContext* context) {
    const auto now = Clock::now();
    if (context == nullptr || current == nullptr) return;
    --current->depth_;
    const auto& its = static_cast<const Call&>(*context);
    if (its.timed) current->seconds_[call.name()].push_back(std::chrono::duration<double>(now - its.start).count());
  }

  static thread_local Stopwatch* current;

  std::set<std::string> names_;
  std::map<std::string, std::vector<double>> seconds_;
  int depth_ = 0;
  at::CallbackHandle handle_;
};

thread_local Stopwatch* Stopwatch::current = nullptr;

std::map<std::string, std::vector<OperatorTime>> sizes_of(const std::function<Step()>& make) {
  const auto trace = dry_run({.number = 1, .trace = true}, [&](const Communicator&) {
                       const Step step = make();
                       step();
                       StepRecorder::begin_step();
                       step();
                     }).trace;
  std::map<std::string, std::vector<OperatorTime>> calls;
  for (const auto& event : trace.events) {
    if (event.kind >= StepTrace::Kind::collective) continue;
    const auto& name = trace.names[static_cast<std::size_t>(event.name)];
    calls[name].push_back({name, event.dtype, static_cast<double>(event.flops > 0 ? event.flops : event.bytes), 0});
  }
  return calls;
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<OperatorTime> time_operators(const std::function<Step()>& make) {
  auto calls = sizes_of(make);
  std::set<std::string> names;
  for (const auto& [name, unused] : calls) names.insert(name);
  constexpr int kSteps = 7;
  const Step step = make();
  for (int i = 0; i < 2; ++i) step();
  std::map<std::string, std::vector<std::vector<double>>> measured;
  Stopwatch watch(names);
  for (int i = 0; i < kSteps; ++i) {
    step();
    for (auto& [name, seconds] : watch.take()) measured[name].push_back(std::move(seconds));
  }
  std::vector<OperatorTime> result;
  for (auto& [name, known] : calls) {
    const auto& steps = measured[name];
    // A kernel may call other operators than a dry run sees.
    const auto same = [&](const auto& seconds) { return seconds.size() == known.size(); };
    if (steps.empty() || !std::all_of(steps.begin(), steps.end(), same)) continue;
    for (std::size_t i = 0; i < known.size(); ++i) {
      std::vector<double> seconds;
      for (const auto& all : steps) seconds.push_back(all[i]);
      known[i].seconds = median(std::move(seconds));
      if (known[i].size > 0) result.push_back(known[i]);
    }
  }
  return result;
}

std::map<std::string, std::vector<HardwareModel::Point>> rates_of(const std::vector<OperatorTime>& calls) {
  constexpr double kSimilar = 1.2;  // largest quotient of sizes in one point
  std::map<std::string, std::vector<OperatorTime>> by_name;
  for (const auto& call : calls) by_name[HardwareModel::rate_name(call.name, call.dtype)].push_back(call);
  std::map<std::string, std::vector<HardwareModel::Point>> rates;
  for (auto& [name, all] : by_name) {
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
    for (std::size_t i = 0, j = 0; i < all.size(); i = j) {
      double size = 0, seconds = 0;
      for (; j < all.size() && all[j].size <= kSimilar * all[i].size; ++j) {
        size += all[j].size, seconds += all[j].seconds;
      }
      rates[name].push_back({size / static_cast<double>(j - i), size / seconds});
    }
  }
  return rates;
}

}  // namespace plan
