// Bounds checks of index operands.
#include "ops/checks/index_bounds.h"

#include <algorithm>
#include <optional>

#include "autograd/materialized_view.h"
#include "internal/simulated.h"
#include "ops/execute/call_frame.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

bool has_elements(at::IntArrayRef sizes) { return c10::multiply_integers(sizes) > 0; }

bool is_full(const SpecPtr& spec) { return spec && !spec->has_partial && shard_axes(spec.get()) == 0; }

// Whether a tensor with elements has an empty local part on some rank.
bool some_part_is_empty(const SpecPtr& spec) {
  if (!spec || !has_elements(spec->sizes)) return false;
  for (std::int64_t d = 0; d < spec->dim(); ++d) {
    const AxisMask axes = shard_axes(spec.get(), d);
    if (axes == 0) continue;
    for (const auto& segments : segments_of_ranks(*spec, d, axes)) {
      if (total_length(segments) == 0) return true;
    }
  }
  return false;
}

bool some_rank_has_nothing(const CachedCall& call) {
  const auto is_empty = [](const auto& action) { return some_part_is_empty(action); };
  return std::any_of(call.input_specs.begin(), call.input_specs.end(), is_empty) ||
         std::any_of(call.output_specs.begin(), call.output_specs.end(), is_empty);
}

// Sets the indexed dimension (the last one if `along` is a larger number) and its size. The size stays 0 if the
// dimension does not exist, for which the operator raises another error.
void set_size(IndexBound& bound, const Indexing& how, const Operand& index, const Operand& data, const OpCall& call) {
  const std::int64_t rank = data.dim();
  if (how.along == "flat") {
    bound.size = c10::multiply_integers(data.sizes);
    return;
  }
  if (how.along == "each") {
    bound.dim = index.list_index;
  } else if (call.has_arg(how.along)) {
    bound.dim = rank == 0 ? 0 : call.dim(how.along);
  } else {
    bound.dim = std::min<std::int64_t>(std::stoll(how.along), std::max<std::int64_t>(rank - 1, 0));
  }
  if (rank == 0) bound.size = 1;
  if (bound.dim < rank) bound.size = data.sizes[static_cast<std::size_t>(bound.dim)];
}

// The position of the schema's second tensor argument, if the first is argument 0.
int index_argument(const OpEntry& entry) {
  int arg = 1;
  while (!entry.args[static_cast<std::size_t>(arg)].holds_tensors()) ++arg;
  return arg;
}

// Whether the index is checked here. The operator's own error covers other cases.
bool is_bound_checked(const IndexBound& bound, const Operand& index) {
  const bool integers = index.dtype == at::kLong || index.dtype == at::kInt;
  return integers && bound.size > 0 && has_elements(index.sizes);
}

// Whether `low` + index is in [0, size) for all indices. The sign bit of one of two differences is set for an index out
// of bounds. The loop has no branch or comparison, so that it vectorizes.
template <class T>
bool is_surely_in_bounds(const at::Tensor& index, std::int64_t low, std::int64_t size) {
  using Unsigned = std::make_unsigned_t<T>;
  const T* values = index.const_data_ptr<T>();
  const std::int64_t n = index.numel();
  const auto shift = static_cast<Unsigned>(low), last = static_cast<Unsigned>(size - 1);
  Unsigned signs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Unsigned place = static_cast<Unsigned>(values[i]) + shift;
    signs |= place | (last - place);
  }
  return static_cast<T>(signs) >= 0;
}

std::optional<std::int64_t> first_out_of_bounds(const IndexBound& bound, const at::Tensor& index) {
  const auto values = index.to(at::kLong).contiguous();
  const auto *begin = values.const_data_ptr<std::int64_t>(), *end = begin + values.numel();
  const std::int64_t low = bound.from_end ? -bound.size : 0;
  const auto* found = std::find_if(
      begin, end, [&](std::int64_t value) { return value != bound.ignored && (value < low || value >= bound.size); });
  return found == end ? std::nullopt : std::optional(*found);
}

void check_bound(const IndexBound& bound, const at::Tensor& local) {
  if (!local.defined() || !local.is_cpu() || local.numel() == 0 || is_simulated(local)) return;
  const auto index = local.contiguous();
  const std::int64_t low = bound.from_end ? bound.size : 0;
  if (index.scalar_type() == at::kInt ? is_surely_in_bounds<std::int32_t>(index, low, low + bound.size)
                                      : is_surely_in_bounds<std::int64_t>(index, low, low + bound.size)) {
    return;
  }
  const auto beyond = first_out_of_bounds(bound, index);
  TORCH_CHECK_INDEX(!beyond, "index ", beyond.value_or(0), " is out of bounds for dimension ", bound.dim, " with size ",
                    bound.size);
}

}  // namespace

std::vector<IndexBound> index_bounds(const OpEntry& entry, const OpCall& described, const CachedCall& call) {
  const Indexing& how = entry.rule().data().indexing;
  if (how.along.empty() || described.operands.empty()) return {};
  const int index_arg = index_argument(entry);
  const Operand& data = described.operands[0];
  for (const auto& operand : described.operands) {
    const bool is_mask = operand.arg == index_arg && (operand.dtype == at::kBool || operand.dtype == at::kByte);
    if (is_mask && how.along == "each") return {};  // a mask may index several dimensions
  }
  if (!has_elements(data.sizes)) return {};
  const bool idle = some_rank_has_nothing(call);
  std::vector<IndexBound> bounds;
  for (std::size_t i = 0; i < described.operands.size(); ++i) {
    const auto& operand = described.operands[i];
    const auto& input = call.inputs[i];
    if (operand.arg != index_arg || !operand.defined || !input.from) continue;
    const bool before = is_full(input.from), after = is_full(input.to);
    if (!(before && !after) && !(idle && (before || after))) continue;
    IndexBound bound{static_cast<std::uint32_t>(i), before, how.from_end};
    set_size(bound, how, operand, data, described);
    if (!how.ignored.empty()) bound.ignored = described.integer(how.ignored);
    if (is_bound_checked(bound, operand)) bounds.push_back(bound);
  }
  return bounds;
}

void check_index_bounds(const ExecutionFrame& frame, bool before) {
  for (const auto& bound : frame.call.bounds) {
    if (bound.before != before) continue;
    auto* impl = frame.operands.tensors[bound.operand];
    if (!before) {
      check_bound(bound, frame.locals[bound.operand]);
    } else if (has_dtensor_key(impl)) {
      check_bound(bound, up_to_date_local(*as_dtensor(impl)));
    } else {
      check_bound(bound, at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)));
    }
  }
}

}  // namespace dtensor
