// The table of operators with a special kernel.
#include "ops/special/special.h"

#include <unordered_map>

namespace dtensor {

SpecialKernel find_special(const c10::OperatorName& name) {
  static const std::unordered_map<std::string, SpecialKernel> table = {
      {"aten::as_strided", as_strided_special},
      {"aten::resize_", resize_special},
      {"aten::resize_as_", resize_special},
      {"aten::_fused_adam", functional_step_special},
      {"aten::_fused_adamw", functional_step_special},
      {"aten::_fused_sgd", functional_step_special},
      {"aten::_fused_adagrad", functional_step_special},
  };
  if (!name.overload_name.empty()) return nullptr;
  const auto it = table.find(name.name);
  return it == table.end() ? nullptr : it->second;
}

}  // namespace dtensor
