// Forms of operators on images, volumes and series: convolutions, norms of channels, pooling, padding, resampling. ATen
// computes a plane in the same way wherever it is; the gradient of an element that several windows read is a sum in
// their order, so spatial dimensions are unsharded there.
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

// The factors of a pack are its name and a number.
Rule with_unsharded(const Rule& ordinary, std::string_view pack) {
  RuleData data = ordinary.data();
  for (Factor& factor : data.factors) factor.unsharded |= factor.name.substr(0, pack.size()) == pack;
  return Rule(std::move(data));
}

Rule unsharded_spatial_dims(const OpCall&, const Rule& ordinary) { return with_unsharded(ordinary, "S"); }
Rule unsharded_padded_dims(const OpCall&, const Rule& ordinary) { return with_unsharded(ordinary, "padded"); }

// The last elements of all planes together are computed by other code.
Rule each_plane(const OpCall&, const Rule& ordinary) { return with_unsharded(ordinary, "S").kernel("each_plane"); }

// oneDNN's bits depend on the number of sequences.
Rule fused_lstm(const OpCall& call, const Rule&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, call.info->name(), " has no bit-identical form. Disable oneDNN, so that ATen ",
                              "computes an LSTM by products: at::globalContext().setUserEnabledMkldnn(false), in ",
                              "Python torch.backends.mkldnn.flags(enabled=False).");
}

void add_plane_forms(FormTable& table) {
  add_form(table, exact_form,
           {"aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::upsample_nearest1d",
            "aten::upsample_nearest2d", "aten::upsample_nearest3d", "aten::_upsample_nearest_exact1d",
            "aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact3d", "aten::reflection_pad1d",
            "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::replication_pad1d", "aten::replication_pad2d",
            "aten::replication_pad3d"});
  add_form(table, unsharded_spatial_dims,
           {"aten::max_pool2d_with_indices_backward",
            "aten::max_pool3d_with_indices_backward",
            "aten::avg_pool1d",
            "aten::avg_pool2d",
            "aten::avg_pool3d",
            "aten::avg_pool2d_backward",
            "aten::avg_pool3d_backward",
            "aten::adaptive_avg_pool1d",
            "aten::_adaptive_avg_pool2d",
            "aten::_adaptive_avg_pool3d",
            "aten::_adaptive_avg_pool2d_backward",
            "aten::_adaptive_avg_pool3d_backward",
            "aten::upsample_nearest1d_backward",
            "aten::upsample_nearest2d_backward",
            "aten::upsample_nearest3d_backward",
            "aten::_upsample_nearest_exact1d_backward",
            "aten::_upsample_nearest_exact2d_backward",
            "aten::_upsample_nearest_exact3d_backward",
            "aten::upsample_bilinear2d_backward",
            "aten::upsample_bicubic2d_backward"});
  add_form(table, each_plane,
           {"aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d",
            "aten::upsample_bicubic2d"});
  add_form(
      table, unsharded_padded_dims,
      {"aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward",
       "aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward"});
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
  add_plane_forms(table);
  add_form(table, fused_lstm, {"aten::mkldnn_rnn_layer"});
}

}  // namespace dtensor
