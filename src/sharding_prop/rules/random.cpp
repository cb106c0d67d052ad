// Random fills: a local kernel draws each value by its global index, so any shard of the result may be drawn alone.
#include <ATen/ExpandUtils.h>

#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {

namespace {

// native_dropout has no meta kernel.
std::vector<OutputMeta> dropout_outputs(const OpArgs& op) {
  OutputMeta output = dense_meta(op.sizes(0), op.dtype(0));
  output.strides = at::DimVector(at::infer_dense_strides(op.sizes(0), op.strides(0)));
  OutputMeta mask = output;
  mask.dtype = at::kBool;
  const int out = op.operand("out0"), kept = op.operand("out1");  // -1 where they are returned
  TORCH_CHECK(out < 0 || (op.dtype(out) == output.dtype && op.dtype(kept) == at::kBool),
              "native_dropout: expected out tensors of dtype ", output.dtype, " and Bool, but got ", op.dtype(out),
              " and ", op.dtype(kept));
  return {output, mask};
}

}  // namespace

void add_random_rules(RuleBook& book) {
  for (const char* op :
       {"aten::uniform_", "aten::normal_", "aten::random_", "aten::exponential_", "aten::cauchy_", "aten::log_normal_",
        "aten::geometric_", "aten::bernoulli_", "aten::bernoulli", "aten::normal.Tensor_float",
        "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", "aten::uniform", "aten::normal_functional",
        "aten::random", "aten::exponential", "aten::cauchy", "aten::log_normal", "aten::geometric"}) {
    book.rule(op, Rule("...* -> ...*").kernel("random_fill"));
  }
  for (const char* op : {"aten::rand_like", "aten::randn_like", "aten::randint_like"}) {
    book.rule(op, Rule("...* -> ...*").unread(0).sees_storage().kernel("random_fill"));
  }
  book.rule("aten::native_dropout", Rule("... -> ..., ...").outputs(dropout_outputs).kernel("dropout_global"));
  // The local kernel random_replicated (ops/handlers/random.cpp) gives them a generator that all ranks seed alike.
  for (const char* op : {"aten::multinomial", "aten::poisson", "aten::binomial", "aten::_standard_gamma",
                         "aten::_sample_dirichlet", "aten::rrelu_with_noise"}) {
    book.replicate(op, "draws by a generator in the order of the elements");
  }
}

}  // namespace dtensor
