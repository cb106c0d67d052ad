// Counts bytes; the process's own peak is the system's word.
#include "memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>

#include "dtensor/tensor.h"

namespace train {
namespace {

std::int64_t local_bytes(const at::Tensor& tensor) {
  const at::Tensor local = dtensor::is_dtensor(tensor) ? dtensor::DTensor(tensor.detach()).to_local() : tensor;
  return static_cast<std::int64_t>(local.nbytes());
}

// Peak resident bytes of this process; 0 where the system does not say.
std::int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace

void MemoryUse::predict(const std::vector<dtensor::FsdpUnit>& units, const std::string& optimizer) {
  resident_before = peak_resident();
  predicted = dtensor::predict_memory(units, optimizer == "sgd" ? 1 : 2);
}

void MemoryUse::measure_parameters(const dtensor::NamedTensors& parameters) {
  std::int64_t shards = 0, gradients = 0;
  for (const auto& [name, slot] : parameters) {
    shards += local_bytes(*slot);
    if (slot->grad().defined()) gradients += local_bytes(slot->grad());
  }
  measured.parameters = std::max(measured.parameters, shards);
  measured.gradients = std::max(measured.gradients, gradients);
}

void MemoryUse::measure_peaks(const dtensor::FsdpStats& stats, int ranks) {
  measured.gathered = stats.peak_gathered_bytes;
  measured.unreduced = stats.peak_unreduced_bytes;
  resident = peak_resident();
  ranks_here = ranks;
}

}  // namespace train
