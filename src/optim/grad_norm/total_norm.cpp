// The total norm: each rank sums the p-th powers of the parts that it counts in double, then one collective.
#include "optim/grad_norm/total_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/device_copy.h"
#include "internal/gradient_norms.h"
#include "optim/grad_norm/power_sums.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

// Reduces Partial tensors (Replicate on those axes) with few collectives and the result of full_tensor().
std::vector<at::Tensor> without_partials(std::vector<at::Tensor> tensors) {
  const auto is_partial = [](const Placement& p) { return p.is_partial(); };
  std::vector<DTensor> partial;
  std::vector<Placements> full;
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_dtensor(tensors[i])) continue;
    const DTensor tensor(tensors[i]);
    Placements placements = tensor.placements();
    if (std::none_of(placements.begin(), placements.end(), is_partial)) continue;
    std::replace_if(placements.begin(), placements.end(), is_partial, Replicate());
    partial.push_back(tensor);
    full.push_back(std::move(placements));
    positions.push_back(i);
  }
  const auto reduced = redistribute(partial, std::move(full));
  for (std::size_t k = 0; k < positions.size(); ++k) tensors[positions[k]] = reduced[k];
  return tensors;
}

using optim::CountedBy;
using optim::has_values_on_host;
using optim::NormGroup;

// Dtype of the result: at least float.
at::ScalarType result_type(at::TensorList tensors) {
  auto type = at::kFloat;
  for (const at::Tensor& t : tensors) {
    if (t.defined() && c10::toRealValueType(t.scalar_type()) == at::kDouble) type = at::kDouble;
  }
  return type;
}

// The device for communication: that of the tensors, of which this rank may have none.
c10::Device device_of(at::TensorList tensors, at::TensorList described) {
  for (const at::TensorList list : {tensors, described}) {
    for (const at::Tensor& t : list) {
      if (t.defined()) return optim::device_of_data(t);
    }
  }
  return at::kCPU;
}

// Checks all tensors before communication, because an empty local part would not show the problem.
void check_norm(at::TensorList tensors, double p) {
  TORCH_CHECK(p > 0, "get_total_norm: expected norm_type > 0, got ", p);
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK(!t.defined() || t.is_floating_point() || t.is_complex(), "get_total_norm: a tensor of sizes ",
                t.sizes(), " is ", t.scalar_type(), "; expected a floating point or complex dtype");
  }
}

// Local knowledge about each tensor: a sum of p-th powers (for infinity: the maximum) that is all-reduced, or one that
// is equal on all ranks. For slice copies (see NormGroup) and regular tensors, each slice or rank adds the same value.
struct Known {
  Known(at::TensorList tensors, const NormGroup& group, double p, c10::Device device);
  at::Tensor added, common;         // by tensor; `common` is undefined if no tensor is equal on all ranks
  at::Tensor regular;               // norm of all regular tensors together; undefined: none
  std::vector<std::int64_t> kinds;  // by tensor: index of the slice copy, or the value after the last for others
};

// Sums sequentially, so that the result has the same bits for any assignment of tensors to groups of ranks (pipeline
// stages).
at::Tensor total_of(const at::Tensor& powers, double p) {
  if (powers.numel() == 0) return at::zeros({}, powers.options());
  return std::isinf(p) ? powers.amax() : powers.cumsum(0).select(0, -1).pow(1 / p);
}

Known::Known(at::TensorList tensors, const NormGroup& group, double p, c10::Device device) {
  std::vector<at::Tensor> own(tensors.size()), alike(tensors.size()), without_mesh;
  const std::int64_t none = group.slice_copy_count() + 1;
  bool any_alike = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    kinds.push_back(none);
    if (!t.defined()) continue;
    if (!is_dtensor(t)) {
      kinds.back() = none - 1;
      without_mesh.push_back(own[i] = t);
      continue;
    }
    if (const auto kind = group.slice_copy_id(t); kind >= 0) kinds.back() = kind;
    const CountedBy share = group.counted_by(t, i);
    const bool added_up = share == CountedBy::this_rank || kinds.back() != none;
    if (share != CountedBy::other_rank) (added_up ? own : alike)[i] = DTensor(t).to_local();
    any_alike |= !added_up;
  }
  added = optim::power_sums(own, p, device);
  if (any_alike) common = optim::power_sums(alike, p, device);
  if (group.has_regular_tensors()) regular = total_of(optim::power_sums(without_mesh, p, device), p);
}

// Regular tensors have no mesh that defines who sums them. If they differed between ranks, each rank would clip by
// another norm and the ranks would diverge.
void check_regular(bool same, double typical, const at::Tensor& mine) {
  TORCH_CHECK(same, "get_total_norm: expected equal regular tensors on all ranks, got different ones (their norm is ",
              typical, " on average, ", mine.item<double>(), " on this rank); all-reduce the gradients first, or make ",
              "the parameters DTensors");
}

// `sums`: sums over n ranks of the norm and of its square.
void check_sums(const at::Tensor& mine, const at::Tensor& sums, std::int64_t n) {
  const double count = static_cast<double>(n), mean = sums[0].item<double>() / count;
  const double squares = sums[1].item<double>() / count;  // the square may overflow
  check_regular(!std::isfinite(squares) || squares - mean * mean <= 1e-10 * mean * mean, mean, mine);
}

// `ends`: the largest norm, and the negated smallest norm.
void check_ends(const at::Tensor& mine, const at::Tensor& ends) {
  const double most = ends[0].item<double>(), least = -ends[1].item<double>();
  check_regular(!std::isfinite(most) || !std::isfinite(least) || most - least <= 1e-5 * most, (most + least) / 2, mine);
}

// Equals 1 for each slice copy that this rank counts, and for regular tensors, which all ranks have.
at::Tensor local_tensors_of(const NormGroup& group) {
  at::Tensor held = at::ones({group.slice_copy_count() + 1}, at::kDouble);
  for (std::int64_t k = 0; k < group.slice_copy_count(); ++k) held[k] = group.counts_slice_copy(k) ? 1 : 0;
  return held;
}

// The sums by tensor, with each logical element counted once. One all-reduce for the sums, the number of copies, and
// the check of regular tensors.
at::Tensor exchange(const Known& known, const NormGroup& group) {
  const Communicator& comm = group.communicator();
  if (!comm || comm.size() == 1) return known.common.defined() ? known.added + known.common : known.added;
  const std::int64_t kinds = group.slice_copy_count();
  const bool copies = kinds > 0 || group.has_regular_tensors();
  std::vector<at::Tensor> parts{known.added};
  if (copies) parts.push_back(copy_without_wait(local_tensors_of(group), known.added.device()));
  if (group.has_regular_tensors()) parts.push_back(at::stack({known.regular, known.regular.square()}));
  const at::Tensor all = parts.size() == 1 ? known.added : at::cat(parts);
  comm.all_reduce(all, ReduceOp::sum).wait();
  at::Tensor sums = parts.size() == 1 ? all : all.narrow(0, 0, known.added.size(0));
  if (copies) {
    const auto held = at::cat({all.narrow(0, sums.size(0), kinds + 1).clamp_min(1), at::ones({1}, all.options())});
    sums = sums / held.index_select(0, copy_without_wait(at::tensor(known.kinds, at::kLong), all.device()));
  }
  if (group.has_regular_tensors() && has_values_on_host(all))
    check_sums(known.regular, all.narrow(0, all.size(0) - 2, 2), comm.size());
  return known.common.defined() ? sums + known.common : sums;
}

at::Tensor exchange_largest(const Known& known, const NormGroup& group) {
  const Communicator& comm = group.communicator();
  if (!comm || comm.size() == 1) {
    return known.common.defined() ? at::maximum(known.added, known.common) : known.added;
  }
  const auto count = known.added.size(0);
  at::Tensor all = known.added;
  if (group.has_regular_tensors()) all = at::cat({all, at::stack({known.regular, known.regular.neg()})});
  comm.all_reduce(all, ReduceOp::max).wait();
  if (group.has_regular_tensors() && has_values_on_host(all)) check_ends(known.regular, all.narrow(0, count, 2));
  const at::Tensor largest = all.narrow(0, 0, count);
  return known.common.defined() ? at::maximum(largest, known.common) : largest;
}

// Positions of the tensors whose mesh contains this rank, by mesh.
std::vector<std::vector<std::int64_t>> positions_by_mesh(at::TensorList tensors) {
  std::vector<DeviceMesh> meshes;
  std::vector<std::vector<std::int64_t>> positions;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(is_dtensor(tensors[i]), "get_total_norm of regular tensors has no bit-identical form: ",
                                "expected DTensors, got a regular tensor of sizes ", tensors[i].sizes());
    const DeviceMesh mesh = DTensor(tensors[i]).mesh();
    if (!mesh.is_member()) continue;
    const auto known = std::find(meshes.begin(), meshes.end(), mesh) - meshes.begin();
    if (known == std::ssize(meshes)) meshes.push_back(mesh), positions.emplace_back();
    positions[static_cast<std::size_t>(known)].push_back(static_cast<std::int64_t>(i));
  }
  return positions;
}

// In a BitIdentical scope the operator sums the squares of each tensor by the tree. Ranks outside a tensor's mesh
// receive its sum as the maximum of the group, since their own is 0.
at::Tensor tree_powers(at::TensorList tensors, const NormGroup& group, double p) {
  TORCH_CHECK_NOT_IMPLEMENTED(p == 2, "get_total_norm in a BitIdentical scope: expected norm_type 2, got ", p);
  const at::Tensor sums = at::zeros({std::ssize(tensors)}, at::kDouble);
  for (const auto& positions : positions_by_mesh(tensors)) {
    std::vector<at::Tensor> of_mesh;
    for (const auto i : positions) of_mesh.push_back(tensors[static_cast<std::size_t>(i)]);
    const auto norms = at::_foreach_norm(of_mesh, p, at::kDouble);
    for (std::size_t k = 0; k < norms.size(); ++k) {
      const auto norm = DTensor(norms[k]).to_local().item<double>();
      sums[positions[k]] = norm * norm;
    }
  }
  const Communicator& comm = group.communicator();
  if (comm && comm.size() > 1) comm.all_reduce(sums, ReduceOp::max).wait();
  return sums;
}

// By tensor: the sums of p-th powers; for infinity the norms. `described`: tensors with the same dtypes and meshes,
// defined also if this rank has no gradient.
at::Tensor powers_of(at::TensorList tensors, at::TensorList described, const NormGroup& group, double p) {
  if (tensors.empty()) return at::zeros({0}, at::kDouble);
  if (is_bit_identical()) return tree_powers(tensors, group, p);
  const Known known(tensors, group, p, device_of(tensors, described));
  return std::isinf(p) ? exchange_largest(known, group) : exchange(known, group);
}

// Computed on the host without operators, because an operator call costs as much as scaling a small tensor.
double total_on_host(const at::Tensor& powers, double p) {
  const auto* begin = powers.const_data_ptr<double>();
  const auto* end = begin + powers.numel();
  if (std::isinf(p)) return std::accumulate(begin, end, 0.0, optim::max_propagate_nan);
  const double sum = std::accumulate(begin, end, 0.0);
  return p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
}

at::Tensor total_of_powers(const at::Tensor& powers, double p, at::ScalarType type) {
  const at::TensorOptions result(type);
  return has_values_on_host(powers) ? at::scalar_tensor(total_on_host(powers, p), result)
                                    : total_of(powers, p).to(result.device(powers.device()));
}

}  // namespace

optim::Gradients::Gradients(at::TensorList parameters, double norm_type) {
  for (const at::Tensor& p : parameters) reduced.push_back(p.defined() ? p.grad() : p);
  check_norm(reduced, norm_type);
  reduced = without_partials(std::move(reduced));
  for (std::size_t i = 0; i < reduced.size(); ++i)
    described.push_back(reduced[i].defined() ? reduced[i] : parameters[i]);
}

at::Tensor optim::total_norm(at::TensorList tensors, at::TensorList described, const NormGroup& group,
                             const NormOptions& options) {
  const double p = options.norm_type;
  const at::Tensor total = total_of_powers(dtensor::powers_of(tensors, described, group, p), p, result_type(described));
  TORCH_CHECK(!options.error_if_nonfinite || std::isfinite(item_or(total, 0.0)), "get_total_norm: the norm of order ",
              p, " of ", tensors.size(), " tensors is not finite: ", total.item<double>());
  return total;
}

at::Tensor get_grad_squares(at::TensorList parameters, const DeviceMesh& mesh) {
  const LocalNoGradGuard scope;
  const optim::Gradients gradients(parameters, 2);
  const NormGroup group(gradients.described, mesh);
  if (group.is_outside_all_meshes()) return {};
  return powers_of(gradients.reduced, gradients.described, group, 2);
}

at::Tensor norm_of_squares(const at::Tensor& squares) {
  const LocalNoGradGuard scope;
  return total_of_powers(squares, 2, at::kDouble);
}

at::Tensor get_total_norm(at::TensorList tensors, NormOptions options) {
  const LocalNoGradGuard scope;
  check_norm(tensors, options.norm_type);
  const auto reduced = without_partials(tensors.vec());
  const NormGroup group(reduced, options.mesh);
  return group.is_outside_all_meshes() ? at::Tensor() : optim::total_norm(reduced, reduced, group, options);
}

}  // namespace dtensor
