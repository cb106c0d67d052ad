// What several families share.
#include "sharding_prop/rules/terms.h"

#include "sharding_prop/rules/metas.h"

namespace dtensor {

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

std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask) {
  std::vector<OutputMeta> outputs;
  for (const int i : like) {
    const bool wanted = mask == nullptr || op.arg(mask).toBoolList()[outputs.size()];
    outputs.push_back(wanted && i >= 0 && op.defined(i) ? dense_meta(op.sizes(i), op.dtype(i)) : undefined_meta());
  }
  return outputs;
}

}  // namespace dtensor
