// Helpers shared by several families.
#include "sharding_prop/rules/shared_parts.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/Contiguity.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/strides.h>

#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {

Rule elastic(const Rule& rule, std::string_view names) {
  RuleData data = rule.data();
  const auto mark = [&](Factor& factor) {
    const bool letter = factor.name.size() == 1 && names.find(factor.name) != std::string_view::npos;
    factor.elastic |= letter || factor.name == names;
  };
  for (Factor& factor : data.factors) mark(factor);
  for (Pack& pack : data.packs) mark(pack.each);
  return Rule(std::move(data));
}

Rule::Dims padded_by(const char* arg) {
  return [arg](const OpArgs& op) {
    const std::vector<std::int64_t> amounts = op.integers(arg);
    std::vector<std::int64_t> padded;
    for (std::size_t i = 0; i < amounts.size(); ++i) {
      if (amounts[i] != 0) padded.push_back(std::ssize(op.sizes(0)) - 1 - static_cast<std::int64_t>(i / 2));
    }
    return padded;
  };
}

OutputMeta dense_meta(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return {true, false, at::DimVector(sizes), c10::contiguous_strides(sizes), 0, dtype};
}

OutputMeta suggested_meta(const OpArgs& op, at::IntArrayRef sizes, int like) {
  OutputMeta meta = dense_meta(sizes, op.dtype(like));
  if (c10::is_channels_last_strides_2d(op.sizes(like), op.strides(like)))
    meta.strides = at::DimVector(c10::get_channels_last_strides_2d(sizes));
  if (c10::is_channels_last_strides_3d(op.sizes(like), op.strides(like)))
    meta.strides = at::DimVector(c10::get_channels_last_strides_3d(sizes));
  return meta;
}

OutputMeta suggested_on_cpu(const OpArgs& op, at::IntArrayRef sizes, int like) {
  return op.device() == c10::DeviceType::CPU ? suggested_meta(op, sizes, like) : dense_meta(sizes, op.dtype(like));
}

OutputMeta preserved_meta(const OpArgs& op) {
  OutputMeta meta = dense_meta(op.sizes(0), op.dtype(0));
  const bool dense = c10::_compute_non_overlapping_and_dense<std::int64_t>(op.sizes(0), op.strides(0));
  meta.strides =
      dense ? at::DimVector(op.strides(0)) : at::DimVector(at::infer_dense_strides(op.sizes(0), op.strides(0)));
  return meta;
}

OutputMeta undefined_meta() { return {false}; }
OutputMeta unknown_meta(c10::ScalarType dtype) { return {true, true, {}, {}, 0, dtype}; }

at::DimVector joined(at::IntArrayRef lead, at::IntArrayRef tail) {
  at::DimVector sizes(lead);
  sizes.append(tail.begin(), tail.end());
  return sizes;
}

std::vector<OutputMeta> masked(const OpArgs& op, const char* mask, std::vector<OutputMeta> metas) {
  const auto asked = op.arg(mask).toBoolList();
  for (std::size_t i = 0; i < metas.size(); ++i) {
    if (!asked[i]) metas[i] = undefined_meta();
  }
  return metas;
}

std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask) {
  std::vector<OutputMeta> metas;
  for (const int i : like) {
    metas.push_back(i >= 0 && op.defined(i) ? dense_meta(op.sizes(i), op.dtype(i)) : undefined_meta());
  }
  return mask == nullptr ? metas : masked(op, mask, std::move(metas));
}

}  // namespace dtensor
