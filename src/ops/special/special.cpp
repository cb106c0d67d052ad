// The table of operators with a special kernel, by name with overload.
#include "ops/special/special.h"

#include <unordered_map>

#include "sharding_prop/resolve.h"

namespace dtensor {
namespace {

using Table = std::unordered_map<std::string, SpecialKernel>;

// LibTorch's own decomposition, whose parts come back to the engine one by one.
void add_decomposed(Table& table) {
  for (const char* name :
       {"aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate", "aten::allclose", "aten::dist",
        "aten::rot90", "aten::_assert_tensor_metadata", "aten::_functional_assert_scalar",
        "aten::_functional_sym_constrain_range", "aten::_functional_sym_constrain_range_for_size", "aten::resize",
        "aten::resize_as", "aten::is_same_size", "aten::_amp_foreach_non_finite_check_and_unscale",
        "aten::_amp_update_scale", "aten::softmax.int_out", "aten::log_softmax.int_out", "aten::_linalg_check_errors",
        "aten::_native_batch_norm_legit_functional", "aten::_batch_norm_with_update_functional"}) {
    table.emplace(name, decompose_special);
    table.emplace(std::string(name) + ".out", decompose_special);
  }
}

Table make_table() {
  Table table = {
      {"aten::as_strided", as_strided_special},
      {"aten::resize_", resize_special},
      {"aten::resize_as_", resize_special},
      {"aten::_fused_adam", functional_step_special},
      {"aten::_fused_adamw", functional_step_special},
      {"aten::_fused_sgd", functional_step_special},
      {"aten::_fused_adagrad", functional_step_special},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", amp_unscale_special},
      {"aten::_fused_sdp_choice", sdp_choice_special},
      {"aten::_to_copy", to_copy_special},
      {"aten::_has_same_storage_numel", storage_numel_special},
  };
  add_decomposed(table);
  return table;
}

// Makes a tensor of numbers only, and writes it to out=.
bool is_factory_out(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  if (arguments.empty() || !arguments.back().is_out() || op.schema().returns().size() != 1) return false;
  return std::none_of(arguments.begin(), arguments.end() - 1, [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  });
}

}  // namespace

SpecialKernel find_special(const c10::OperatorHandle& op) {
  static const Table table = make_table();
  const auto it = table.find(c10::toString(op.operator_name()));
  if (it != table.end()) return it->second;
  if (op.operator_name().name.rfind("aten::", 0) != 0 || !is_factory_out(op)) return nullptr;
  return resolve(op)->entry->source == RuleSource::refuse ? nullptr : factory_out_special;
}

}  // namespace dtensor
