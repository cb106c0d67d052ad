// Forms of operators on images, volumes and series: convolutions, norms of channels.
#include "sharding_prop/bit_identical/form_table.h"

namespace dtensor {
namespace {

// Channels of the source are contracted in blocks. Without channels there is nothing to compute.
Rule convolution(const OpCall&, const Rule& ordinary) {
  if (ordinary.data().factors.empty()) return ordinary;
  return Rule(ordinary).unsharded("i").kernel("tiled_convolution");
}

// Blocks of positions end with each line of the last dimension, so the others are cut anywhere.
Rule convolution_backward(const OpCall& call, const Rule& ordinary) {
  if (ordinary.data().factors.empty()) return ordinary;
  Rule rule = Rule(ordinary).unsharded("o").kernel("tiled_convolution_backward").kernel_gives_replicate();
  const auto rank = call.sizes(1).size();
  return rank < 3 ? rule : rule.unsharded(std::string_view("abc").substr(std::min<std::size_t>(rank - 3, 2), 1));
}

Rule group_norm(const OpCall&, const Rule& ordinary) { return Rule(ordinary).kernel("tree_group_norm"); }
Rule group_norm_backward(const OpCall&, const Rule& ordinary) {
  return Rule(ordinary).kernel("tree_group_norm_backward").kernel_gives_replicate();
}

}  // namespace

void add_image_forms(FormTable& table) {
  add_form(table, convolution, {"aten::convolution", "aten::_convolution"});
  add_form(table, convolution_backward, {"aten::convolution_backward"});
  add_form(table, group_norm, {"aten::native_group_norm"});
  add_form(table, group_norm_backward, {"aten::native_group_norm_backward"});
  add_form(table, exact_form,
           {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update",
            "aten::_batch_norm_no_update", "aten::_native_batch_norm_legit_no_training",
            "aten::native_batch_norm_backward", "aten::batch_norm_backward"});
}

}  // namespace dtensor
