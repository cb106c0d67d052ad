// Tries all combinations of placements and measures their cost in bytes moved.
#include "verify/search.h"

#include <ATen/ATen.h>

#include <random>
#include <set>

#include "redistribute/plan/plan.h"
#include "verify/traffic.h"

namespace dtensor::verify {
namespace {

using Inputs = std::vector<Placements>;  // one per operand; empty: regular tensor

constexpr std::size_t kMostCombinations = 256;

std::string text_of(const Inputs& inputs) {
  std::string text;
  for (const Placements& p : inputs) text += (text.empty() ? "" : ", ") + (p.empty() ? std::string("-") : to_string(p));
  return text;
}

// Replicate, and Shard for each dimension with enough elements; smaller dimensions may look sound by accident.
std::vector<Placement> options(const at::Tensor& tensor, std::int64_t ranks) {
  std::vector<Placement> list{Replicate()};
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) >= 2 * ranks) list.push_back(Shard(d));
  }
  return list;
}

// All combinations with a Shard; empty if there are too many.
std::vector<Inputs> combinations(const std::vector<at::Tensor>& operands, std::int64_t ranks) {
  std::vector<Inputs> all{{}};
  for (const at::Tensor& tensor : operands) {
    std::vector<Inputs> next;
    for (const Inputs& head : all) {
      const auto choices = is_placed(tensor) ? options(tensor, ranks) : std::vector<Placement>{};
      if (choices.empty()) next.push_back(head), next.back().emplace_back();
      for (const Placement& p : choices) next.push_back(head), next.back().push_back({p});
    }
    all = std::move(next);
    if (all.size() > kMostCombinations) return {};
  }
  all.erase(all.begin());  // all Replicate
  return all;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || !a.sizes().equals(b.sizes())) return false;
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a, b);
  if (c10::isFloat8Type(a.scalar_type())) return at::allclose(a.to(at::kFloat), b.to(at::kFloat), 0.13, 0.13, true);
  return at::allclose(a, b, 1e-4, 1e-4, true);
}

bool fits(const std::vector<at::Tensor>& parts, const at::Tensor& full, const Placements& placements,
          std::int64_t ranks) {
  try {
    return close(assemble_parts(parts, full.sizes(), placements, {ranks}), full);
  } catch (const std::exception&) {
    return false;
  }
}

// Whether a placement describes the results of the ranks.
bool has_placement(const std::vector<at::Tensor>& parts, const at::Tensor& full, std::int64_t ranks) {
  if (fits(parts, full, {Replicate()}, ranks)) return true;
  for (std::int64_t d = 0; d < full.dim(); ++d) {
    if (fits(parts, full, {Shard(d)}, ranks)) return true;
  }
  return full.is_floating_point() && fits(parts, full, {Partial()}, ranks);
}

bool is_true(const Sample& sample, const Inputs& inputs, std::int64_t ranks) {
  const auto operands = sample_operands(sample);
  try {
    const auto full = results_of(sample, operands);
    std::vector<std::vector<at::Tensor>> parts(full.size());
    for (std::int64_t r = 0; r < ranks; ++r) {
      std::vector<at::Tensor> local;
      for (std::size_t i = 0; i < operands.size(); ++i) {
        local.push_back(inputs[i].empty() ? operands[i] : part_of_rank(operands[i], inputs[i], {ranks}, r, i));
      }
      const auto results = results_of(sample, local);
      for (std::size_t k = 0; k < full.size(); ++k) parts[k].push_back(results.at(k));
    }
    for (std::size_t k = 0; k < full.size(); ++k) {
      if (!has_placement(parts[k], full[k], ranks)) return false;
    }
    return !full.empty();
  } catch (const std::exception&) {
    return false;
  }
}

Inputs start_of(const std::vector<at::Tensor>& operands, const std::function<Placement(const at::Tensor&)>& choose) {
  Inputs inputs;
  for (const at::Tensor& tensor : operands) {
    inputs.emplace_back();
    if (is_placed(tensor)) inputs.back() = {choose(tensor)};
  }
  return inputs;
}

double bytes_between(const MeshCall& mc, const Inputs& to) {
  double bytes = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto& spec = mc.call.operands[i].spec;
    if (spec && !to[i].empty() && to[i] != spec->placements) {
      bytes += static_cast<double>(plan_redistribute(*spec, to[i]).bytes_moved);
    }
  }
  return bytes;
}

// Bytes of redistributing the operands, and of the local kernel's own collectives.
double bytes_of(const Sample& sample, std::int64_t ranks, const MeshCall& mc, const Decision& decision) {
  const double moved = bytes_between(mc, decision.inputs);
  return decision.local_kernel.empty() ? moved : moved + kernel_traffic(sample, ranks, decision.inputs);
}

// The offered strategies, regardless of cost.
std::vector<Decision> strategies(const Sample& sample, std::int64_t ranks, const Inputs& start) {
  std::vector<Decision> list;
  for (std::size_t k = 0, count = 1; k < count; ++k) {
    MeshCall mc = mesh_call(sample, {ranks}, 0, start);
    infer_outputs(mc.call);
    list.push_back(decide(mc.call, nth_candidate(k, count)));
  }
  return list;
}

Placement last_dim(const at::Tensor& t) { return t.dim() == 0 ? Placement(Replicate()) : Shard(t.dim() - 1); }
Placement first_dim(const at::Tensor& t) { return t.dim() == 0 ? Placement(Replicate()) : Shard(0); }

void compare_bytes(const Sample& sample, std::int64_t ranks, const std::vector<Inputs>& truths, Report& report) {
  const auto operands = sample_operands(sample);
  for (const auto& choose : {first_dim, last_dim}) {
    const Inputs start = start_of(operands, choose);
    MeshCall mc = mesh_call(sample, {ranks}, 0, start);
    infer_outputs(mc.call);
    const double moved = bytes_of(sample, ranks, mc, propagate(mc.call));
    double least = moved;
    for (const Inputs& other : truths) least = std::min(least, bytes_between(mc, other));
    for (const Decision& other : strategies(sample, ranks, start)) {
      if (bytes_between(mc, other.inputs) < least) least = std::min(least, bytes_of(sample, ranks, mc, other));
    }
    report.bytes.push_back(moved == 0 ? 1 : moved / std::max(least, 1.0));
  }
}

void count_strategies(const Sample& sample, std::int64_t ranks, Report& report) {
  for (const Verdict& v : verify_all_strategies(sample, ranks)) {
    ++report.offered;
    if (v.kind == Verdict::Kind::sound) ++report.sound;
    if (v.kind == Verdict::Kind::needs_kernel) ++report.by_kernel;
    if (v.kind == Verdict::Kind::unsound) report.unsound.push_back(v.text);
  }
}

}  // namespace

Report verify_sample(const Sample& sample, std::int64_t ranks, bool search) {
  Report report;
  count_strategies(sample, ranks, report);
  const auto operands = sample_operands(sample);
  std::vector<Inputs> truths;
  // Positions of lists are decided separately, so their combinations are not strategies.
  search = search && sample.op.operator_name().name.find("::_foreach_") == std::string::npos;
  for (const Inputs& inputs : search ? combinations(operands, ranks) : std::vector<Inputs>()) {
    if (is_true(sample, inputs, ranks)) truths.push_back(inputs);
  }
  const auto offered = strategies(sample, ranks, start_of(operands, first_dim));
  for (const Inputs& inputs : truths) {
    const auto is_it = [&](const Decision& decision) { return decision.inputs == inputs; };
    if (std::none_of(offered.begin(), offered.end(), is_it)) report.missing.push_back(text_of(inputs));
  }
  compare_bytes(sample, ranks, truths, report);
  return report;
}

std::vector<std::string> verify_mesh(const Sample& sample, at::IntArrayRef mesh_shape, int tries) {
  std::mt19937 random(5);
  std::vector<std::string> wrong;
  for (int i = 0; i < tries; ++i) {
    Inputs inputs;
    for (const at::Tensor& tensor : sample_operands(sample)) {
      inputs.emplace_back();
      for (std::size_t a = 0; a < mesh_shape.size() && is_placed(tensor); ++a) {
        const auto pick = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tensor.dim() + 2)) - 2;
        const bool partial = pick == -2 && tensor.is_floating_point() && tensor.isfinite().all().item<bool>();
        inputs.back().push_back(pick >= 0 ? Placement(Shard(pick)) : partial ? Partial() : Placement(Replicate()));
      }
    }
    const Verdict v = verify_decision(sample, mesh_shape, inputs);
    if (v.kind == Verdict::Kind::unsound) wrong.push_back(text_of(inputs) + ": " + v.text);
  }
  return wrong;
}

}  // namespace dtensor::verify
