// Random fills. A local kernel computes each value from its global index, so each shard of the result can be filled
// separately.
#include <ATen/ExpandUtils.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {

namespace {

// native_dropout has no meta kernel.
std::vector<OutputMeta> dropout_outputs(const OpArgs& op) {
  OutputMeta output = dense_meta(op.sizes(0), op.dtype(0));
  output.strides = at::DimVector(at::infer_dense_strides(op.sizes(0), op.strides(0)));
  OutputMeta mask = output;
  mask.dtype = at::kBool;
  const int out = op.operand("out0"), kept = op.operand("out1");  // -1 if it is a result
  TORCH_CHECK(out < 0 || (op.dtype(out) == output.dtype && op.dtype(kept) == at::kBool),
              "native_dropout: expected out tensors of dtype ", output.dtype, " and Bool, but got ", op.dtype(out),
              " and ", op.dtype(kept));
  return {output, mask};
}

}  // namespace

void add_random_rules(RuleBook& book) {
  const auto add = [&](const char* kernel, std::initializer_list<const char*> operators) {
    for (const char* op : operators) book.rule(op, Rule("...* -> ...*").kernel(kernel));
  };
  add("fill_uniform", {"aten::uniform_", "aten::uniform"});
  add("fill_normal", {"aten::normal_", "aten::normal_functional", "aten::normal.Tensor_float",
                      "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"});
  add("fill_bernoulli", {"aten::bernoulli_", "aten::bernoulli"});
  add("fill_integers", {"aten::random_", "aten::random"});
  add("fill_exponential", {"aten::exponential_", "aten::exponential"});
  add("fill_geometric", {"aten::geometric_", "aten::geometric"});
  add("fill_cauchy", {"aten::cauchy_", "aten::cauchy"});
  add("fill_log_normal", {"aten::log_normal_", "aten::log_normal"});
  // Only the sizes of the operand are used.
  for (const auto& [op, kernel] : {std::pair{"aten::rand_like", "fill_uniform"},
                                   {"aten::randn_like", "fill_normal"},
                                   {"aten::randint_like", "fill_integers"}}) {
    book.rule(op, Rule("...* -> ...*").values_unused(0).reads_storage_shards().kernel(kernel));
  }
  book.rule("aten::native_dropout", Rule("... -> ..., ...").outputs(dropout_outputs).kernel("dropout_global"));
  // The local kernel random_replicated (ops/local_kernels/random.cpp) uses a generator with the same seed on all ranks.
  for (const char* op : {"aten::multinomial", "aten::poisson", "aten::binomial", "aten::_standard_gamma",
                         "aten::_sample_dirichlet", "aten::rrelu_with_noise"}) {
    book.replicate(op, "draws by a generator in the order of the elements");
  }
}

}  // namespace dtensor
