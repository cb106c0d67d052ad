#include "plan/bounds/parameter_bytes.h"

namespace plan {

using namespace dtensor;

namespace {

double element_bytes(const ParallelLayout& l) { return l.bf16_parameters ? 2 : 4; }

// Muon has one state, in float. AdamW, which layouts with Muon use for some parameters, has two in their dtype, which
// are not less.
double state_bytes(const ParallelLayout& l) { return l.optimizer == "muon" ? 4 : 2 * element_bytes(l); }

}  // namespace

// Of a rank, before data parallelism shards them.
double ParameterBytes::dense(const ParallelLayout& l) const {
  return (size_.parameters - size_.expert_parameters) / static_cast<double>(l.tp * l.pp);
}

double ParameterBytes::experts(const ParallelLayout& l) const {
  return size_.expert_parameters / static_cast<double>(l.pp * l.ep);
}

double ParameterBytes::count(const ParallelLayout& l) const {
  return dense(l) / static_cast<double>(l.shard * l.cp) + size_.expert_parameters / static_cast<double>(l.ranks());
}

double ParameterBytes::stored(const ParallelLayout& l) const {
  return l.offload ? 0 : (element_bytes(l) + state_bytes(l)) * count(l);
}

double ParameterBytes::updated(const ParallelLayout& l) const {
  return l.offload ? 0 : stored(l) + element_bytes(l) * count(l);
}

double ParameterBytes::host(const ParallelLayout& l) const {
  return l.offload ? (2 * element_bytes(l) + state_bytes(l)) * count(l) : 0;
}

double ParameterBytes::unsharded(const ParallelLayout& l) const {
  const double gathered = (gathers(l) ? dense(l) : 0) + (l.ranks() > l.pp * l.ep ? experts(l) : 0);
  return (l.reshard ? 0 : l.bf16 ? 2 : 4) * gathered;
}

double ParameterBytes::gradient_sums(const ParallelLayout& l) const {
  const bool sums = l.microbatches > 1 && (l.pp > 1 || !l.accumulate_sharded);
  return sums ? element_bytes(l) * (dense(l) + experts(l)) : 0;
}

}  // namespace plan
