// Counts bytes. The peak of the process is that of the operating system.
#include "train/layouts/memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "train/model/bytes.h"

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
  measured.rank = mesh.world().rank();
  const auto& axes = mesh.names();
  if (std::find(axes.begin(), axes.end(), "pp") != axes.end()) gather_over(mesh);
}

void MemoryUse::gather_over(const dtensor::DeviceMesh& mesh) {
  constexpr std::array kBytes = {&RankMemory::rank,      &RankMemory::parameters, &RankMemory::gradients,
                                 &RankMemory::optimizer, &RankMemory::gathered,   &RankMemory::unreduced};
  const auto line = mesh.communicator("pp");
  std::vector<std::int64_t> own;
  for (const auto bytes : kBytes) own.push_back(measured.*bytes);
  const at::Tensor all = at::empty({line.size(), static_cast<std::int64_t>(own.size())}, at::kLong);
  line.all_gather(all.unbind(), at::tensor(own)).wait();
  const auto* value = all.const_data_ptr<std::int64_t>();
  for (int i = 0; i < line.size(); ++i) {
    RankMemory& rank = of_pipeline.emplace_back();
    for (const auto bytes : kBytes) rank.*bytes = *value++;
  }
}

}  // namespace train
