// Specs, heads, masks and random regions of a call; gradients as DTensors.
#include "attention/local_operands.h"

#include <ATen/ExpandUtils.h>

#include <cmath>

#include "autograd/materialized_view.h"
#include "internal/contiguous_ranges.h"
#include "placement/shard_map.h"
#include "placement/stride_order.h"
#include "random/global_indices.h"
#include "random/state.h"
#include "redistribute/execute.h"
#include "redistribute/regions/part_views.h"

namespace dtensor::attention_impl {
namespace {

const TensorSpec& spec_of(const at::Tensor& tensor) { return *dtensor_or_null(tensor)->spec(); }

SpecPtr result_spec(const Setup& s) {
  at::DimVector sizes(s.q->sizes);
  sizes[3] = s.v->sizes[3];
  return intern_spec(s.q->mesh, s.layout.q, sizes, at::infer_dense_strides(sizes, s.q->strides), s.q->dtype);
}

// The local key head of each local query head; empty if they are equal groups in order.
std::vector<std::int64_t> heads_of(const TensorSpec& q, const TensorSpec& k, const AttentionLayout& layout) {
  std::vector<std::int64_t> held, heads;
  for (const Segment& s : own_segments(*q.mesh, k.sizes[1], 1, layout.used)) {
    for (std::int64_t g = s.offset; g < s.offset + s.length; ++g) held.push_back(g);
  }
  if (held.empty()) return {};
  const auto heads_per_group = q.sizes[1] / k.sizes[1];
  for (const Segment& s : own_segments(*q.mesh, q.sizes[1], 1, layout.q)) {
    for (std::int64_t h = s.offset; h < s.offset + s.length; ++h) {
      heads.push_back(std::find(held.begin(), held.end(), h / heads_per_group) - held.begin());
    }
  }
  const auto count = heads.size() / held.size();
  bool equal = heads.size() % held.size() == 0;
  for (std::size_t h = 0; equal && h < heads.size(); ++h) equal = heads[h] == static_cast<std::int64_t>(h / count);
  return equal ? std::vector<std::int64_t>{} : heads;
}

SequenceParts blocks_of(const Setup& s) {
  SequenceParts blocks;
  const auto& mesh = *s.q->mesh;
  blocks.q = segments_of_ranks(mesh, s.q->sizes[2], 2, s.layout.q, s.layout.ring);
  blocks.kv = segments_of_ranks(mesh, s.k->sizes[2], 2, s.layout.used, s.layout.ring);
  blocks.heads = heads_of(*s.q, *s.k, s.layout);
  if (s.layout.merge != 0) blocks.merge = as_mesh_impl(mesh).communicator(s.layout.merge);
  if (s.layout.ring == 0) return blocks;
  blocks.comm = as_mesh_impl(mesh).communicator(s.layout.ring);
  blocks.me = blocks.comm.rank();
  return blocks;
}

}  // namespace

at::Tensor local_of(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  return impl == nullptr ? tensor : up_to_date_local(*impl);
}

at::Tensor last_dense(const at::Tensor& t) { return t.stride(-1) == 1 || t.size(-1) <= 1 ? t : t.contiguous(); }

namespace {

// Documents of this rank's rows of the batch.
std::vector<std::vector<std::int64_t>> local_documents(at::Tensor rows, const Setup& s) {
  const at::NoGradGuard no_grad;
  const auto length = s.k->sizes[2];
  if (dtensor_or_null(rows) == nullptr) {
    const auto held = own_segments(*s.q->mesh, s.q->sizes[0], 0, s.layout.q);
    if (held.empty()) return {};
    rows = select_segments(rows, 0, held);
  } else {
    Placements wanted(s.layout.q.size());
    for (std::size_t a = 0; a < wanted.size(); ++a) {
      if (s.layout.q[a].is_shard(0)) wanted[a] = s.layout.q[a];
    }
    rows = local_of(redistribute_tensors({rows}, {std::move(wanted)})[0]);
  }
  std::vector<std::vector<std::int64_t>> documents;
  for (const at::Tensor& row : rows.contiguous().unbind()) documents.push_back(documents_of_row(row, length));
  return documents;
}

}  // namespace

Setup setup_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionLayout layout,
               const AttentionOptions& options) {
  Setup s;
  s.layout = std::move(layout);
  s.q = dtensor_or_null(q)->spec();
  s.k = dtensor_or_null(k)->spec();
  s.v = dtensor_or_null(v)->spec();
  s.out = result_spec(s);
  s.options = options;
  s.options.mask = s.options.sinks = at::Tensor();
  s.scores.pattern = pattern_of(options, {s.q, s.k, s.v});
  s.scores.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(s.q->sizes[3])));
  s.scores.dropout = options.dropout;
  // All ranks of the world count a random operator.
  if (options.dropout > 0) s.scores.key = next_random_key(as_mesh_impl(*s.q->mesh));
  for (std::size_t a = 0; a < s.layout.q.size(); ++a) {
    const bool split = s.layout.q[a].is_shard() && s.q->mesh->layout.shape[a] > 1;
    if (split && s.layout.kv[a].is_replicate()) s.summed |= AxisMask{1} << a;
  }
  if (!s.q->mesh->is_member) return s;
  if (options.row_cu_seqlens.defined()) s.documents = local_documents(options.row_cu_seqlens, s);
  s.blocks = blocks_of(s);
  auto region = region_of(*s.q);
  region.sizes = {region.sizes[0], s.q->sizes[1], s.q->sizes[2], s.k->sizes[2]};
  s.scores.region = std::move(region);
  return s;
}

namespace {

// The placements for a 4-D mask, and whether its rows are those of the local queries.
std::pair<Placements, bool> mask_layout(const TensorSpec& mask, const AttentionLayout& layout) {
  const std::size_t axes = layout.q.size();
  bool has_local_rows = false;
  for (std::size_t a = 0; a < axes; ++a) {
    has_local_rows |= mask.sizes[2] > 1 && layout.q[a].is_shard(2) && mask.placements[a].is_shard();
  }
  Placements wanted(axes);
  for (std::size_t a = 0; a < axes; ++a) {
    const auto& p = layout.q[a];
    if (!p.is_shard() || mask.sizes[static_cast<std::size_t>(p.dim())] == 1) continue;
    if (p.dim() < 2 || has_local_rows) wanted[a] = p;
  }
  return {wanted, has_local_rows};
}

// Slices batch and heads of a regular mask to this rank's part.
at::Tensor slice_regular_tensor(at::Tensor mask, const Setup& s) {
  for (const std::int64_t d : {0, 1}) {
    if (mask.size(d) == 1) continue;
    mask = select_segments(mask, d, own_segments(*s.q->mesh, s.q->sizes[static_cast<std::size_t>(d)], d, s.layout.q));
  }
  return mask;
}

}  // namespace

LocalMask local_mask(at::Tensor mask, const Setup& s) {
  if (!mask.defined()) return {};
  const at::NoGradGuard no_grad;
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  if (dtensor_or_null(mask) == nullptr) return {s.q->mesh->is_member ? slice_regular_tensor(mask, s) : mask, false};
  auto [wanted, has_local_rows] = mask_layout(spec_of(mask), s.layout);
  return {local_of(redistribute_tensors({mask}, {std::move(wanted)})[0]), has_local_rows};
}

Inputs local_inputs(const Setup& s, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto block = [&](const at::Tensor& t) {
    const auto local = local_of(t);
    return last_dense(s.layout.gather == 0 ? local : redistribute_local(local, spec_of(t), s.layout.used));
  };
  return {last_dense(local_of(q)), block(k), block(v)};
}

at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec) {
  return make_dtensor(spec, local.defined() ? to_stride_order(local, *spec) : local);
}

at::Tensor key_gradient(const Setup& s, const at::Tensor& local, const SpecPtr& spec) {
  Placements summands = s.layout.used, given = s.layout.kv;
  for (std::size_t a = 0; a < summands.size(); ++a) {
    if (has_axis(s.layout.gather | s.summed, a) && s.layout.q[a].is_shard()) summands[a] = dtensor::Partial();
    if (has_axis(s.summed, a)) given[a] = dtensor::Partial();
  }
  const auto target = with_placements(*spec, given);
  if (!local.defined() || s.layout.gather == 0) return wrapped(local, target);
  return wrapped(redistribute_local(local, *with_placements(*spec, summands), given), target);
}

at::Tensor query_gradient(const Setup& s, const at::Tensor& local) {
  Placements given = s.layout.q;
  for (std::size_t a = 0; a < given.size(); ++a) given[a] = has_axis(s.layout.merge, a) ? dtensor::Partial() : given[a];
  return wrapped(local, with_placements(*s.q, given));
}

at::Tensor sinks_gradient(const Setup& s, const at::Tensor& local, const SpecPtr& spec) {
  Placements given = spec->placements;
  for (std::size_t a = 0; a < given.size(); ++a) {
    if (s.layout.q[a].is_shard() && !s.layout.q[a].is_shard(1) && s.q->mesh->layout.shape[a] > 1) {
      given[a] = dtensor::Partial();
    }
  }
  return wrapped(local, with_placements(*spec, given));
}

// [B, H, L, S] mask of the weights that dropout keeps, with the placements of the queries.
at::Tensor dropout_mask(const Setup& s) {
  if (s.scores.dropout == 0) return {};
  const at::IntArrayRef sizes = s.scores.region.sizes;
  at::DimVector full(s.q->sizes);
  full[3] = s.k->sizes[2];
  const auto spec = intern_spec(s.q->mesh, s.layout.q, full, c10::contiguous_strides(full), at::kBool);
  if (!s.q->mesh->is_member) return make_dtensor(spec, {});
  auto region = region_of(*spec);
  region.sizes = at::DimVector(sizes);
  region.segments[0] = s.scores.region.segments[0];
  const LocalBelowAutogradGuard scope;
  auto local = at::empty(spec->local_sizes, at::TensorOptions(at::kBool));
  fill_bernoulli(local, region, s.scores.key, 1 - s.scores.dropout);
  return make_dtensor(spec, local);
}

}  // namespace dtensor::attention_impl
