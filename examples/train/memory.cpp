// Counts bytes. The peak of the process is that of the operating system.
#include "memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "bytes.h"

namespace train {
namespace {

// Peak resident bytes of this process; 0 if unknown.
std::int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// Gradients of all units stay unreduced until the last part of a batch.
std::int64_t waiting_gradients(const std::vector<dtensor::FsdpUnit>& units) {
  std::int64_t bytes = 0;
  for (const auto& unit : units) bytes += unit.gradient_bytes();
  return bytes;
}

// Maximum of gathered bytes according to the schedule: the stages between their UNSHARD and RESHARD.
std::int64_t unsharded_at_once(const std::vector<dtensor::pipeline::Action>& actions,
                               const std::vector<std::int64_t>& bytes_of_stage) {
  using Kind = dtensor::pipeline::ActionKind;
  std::int64_t now = 0, most = 0;
  for (const auto& action : actions) {
    const auto bytes = bytes_of_stage[static_cast<std::size_t>(action.stage)];
    if (action.kind == Kind::unshard) most = std::max(most, now += bytes);
    if (action.kind == Kind::reshard) now -= bytes;
  }
  return most;
}

// Whether a gradient is Partial on an axis of several ranks.
bool is_unreduced(const at::Tensor& gradient) {
  if (!dtensor::is_dtensor(gradient)) return false;
  const dtensor::DTensor sum(gradient);
  const auto mesh = sum.mesh();
  for (std::size_t axis = 0; axis < sum.placements().size(); ++axis) {
    if (sum.placements()[axis].is_partial() && mesh.size(static_cast<std::int64_t>(axis)) > 1) return true;
  }
  return false;
}

}  // namespace

void MemoryUse::predict(const std::vector<dtensor::FsdpUnit>& units, const Options& options) {
  predicted = dtensor::predict_memory(units);
  if (options.grad_accum > 1) predicted.unreduced = waiting_gradients(units);
}

// Within an action, the units of a stage are gathered and freed one after the other, at most two at a time. A unit of
// another stage may be gathered as well. A stage with the full model is as without a pipeline: embedding and head are
// one unit.
void MemoryUse::predict_in_stages(const std::vector<std::vector<dtensor::FsdpUnit>>& units, const std::vector<int>& own,
                                  const dtensor::pipeline::Schedule& schedule, const Options& options) {
  std::vector<std::int64_t> bytes_of_stage(units.size());
  std::vector<dtensor::FsdpUnit> all;
  std::int64_t largest = 0, second = 0, together = 0;
  for (const int stage : own) {
    for (const auto& unit : units[static_cast<std::size_t>(stage)]) {
      all.push_back(unit);
      bytes_of_stage[static_cast<std::size_t>(stage)] += unit.gathered_bytes();
      const auto bytes = unit.gathered_bytes();
      second = std::max(second, std::min(largest, bytes));
      largest = std::max(largest, bytes);
    }
    together += bytes_of_stage[static_cast<std::size_t>(stage)];
  }
  predicted = dtensor::predict_memory(all);
  predicted.unreduced = waiting_gradients(all);
  if (schedule.stages() > 1) {
    predicted.gathered = options.reshard == "false" ? together : largest + (own.size() > 1 ? second : 0);
  }
  if (own.empty() || !schedule.has(dtensor::pipeline::ActionKind::unshard)) return;
  const auto rank = static_cast<std::size_t>(schedule.rank_of(own.front()));
  predicted.gathered = unsharded_at_once(schedule.ranks[rank], bytes_of_stage);
}

// Gathers are collectives. Collectives also run between parts of a batch and between messages of a pipeline, when
// gradients of earlier parts are unreduced. So memory is measured at each collective.
void MemoryUse::begin(const dtensor::NamedTensors& parameters, std::vector<dtensor::FsdpUnit> counts) {
  counts_ = std::move(counts);
  resident_before = peak_resident();
  for (const auto& [name, slot] : parameters) parameters_.push_back(*slot);
  listener_ = std::make_shared<dtensor::EventListener>([this](const dtensor::Event&) { measure_now(); },
                                                       dtensor::EventListener::Kinds{dtensor::Event::Kind::collective});
}

void MemoryUse::measure_now() {
  std::int64_t waiting = 0, gathered = 0;
  for (const auto& unit : counts_) gathered += unit.stats().gathered_bytes;
  measured.gathered = std::max(measured.gathered, gathered);
  for (const auto& p : parameters_) {
    if (is_unreduced(p.grad())) waiting += local_bytes(p.grad());
  }
  measured.unreduced = std::max(measured.unreduced, waiting);
}

void MemoryUse::measure_parameters() {
  std::int64_t shards = 0, gradients = 0;
  for (const auto& p : parameters_) {
    shards += local_bytes(p);
    gradients += local_bytes(p.grad());
  }
  measured.parameters = std::max(measured.parameters, shards);
  measured.gradients = std::max(measured.gradients, gradients);
}

void MemoryUse::end(const dtensor::DeviceMesh& mesh) {
  listener_.reset();
  parameters_.clear();
  for (const auto& unit : counts_) measured.unreduced = std::max(measured.unreduced, unit.stats().peak_unreduced_bytes);
  counts_.clear();
  resident = peak_resident();
  pool = dtensor::memory_pool_stats();
  ranks_here = mesh.world().size();
  const auto& axes = mesh.names();
  if (std::find(axes.begin(), axes.end(), "pp") != axes.end()) gather_over(mesh);
}

namespace {

constexpr std::array kBytes = {&dtensor::FsdpMemory::parameters, &dtensor::FsdpMemory::gradients,
                               &dtensor::FsdpMemory::optimizer, &dtensor::FsdpMemory::gathered,
                               &dtensor::FsdpMemory::unreduced};

}  // namespace

void MemoryUse::gather_over(const dtensor::DeviceMesh& mesh) {
  const auto line = mesh.communicator("pp");
  std::vector<std::int64_t> own{mesh.world().rank()};
  for (const auto* memory : {&predicted, &measured}) {
    for (const auto bytes : kBytes) own.push_back(memory->*bytes);
  }
  std::vector<at::Tensor> all;
  for (int i = 0; i < line.size(); ++i) all.push_back(at::empty({static_cast<std::int64_t>(own.size())}, at::kLong));
  line.all_gather(all, at::tensor(own)).wait();
  for (const at::Tensor& row : all) {
    const auto* value = row.const_data_ptr<std::int64_t>();
    OfRank& r = of_pipeline.emplace_back(OfRank{*value++, {}, {}});
    for (auto* memory : {&r.predicted, &r.measured}) {
      for (const auto bytes : kBytes) memory->*bytes = *value++;
    }
  }
}

}  // namespace train
