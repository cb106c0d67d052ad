// Access of local kernels to their call: arguments by schema name, specs of tensors, the position of this rank's shard
// in the global tensor, and reductions over the mesh axes that shard a factor. Kernels need no stack offsets, operand
// numbers or placement arithmetic.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <optional>
#include <string_view>
#include <vector>

#include "internal/contiguous_ranges.h"
#include "ops/local_kernels/local_kernel.h"
#include "placement/shard_map.h"
#include "redistribute/regions/shard_rows.h"

namespace dtensor {

class LocalArgs {
 public:
  explicit LocalArgs(const LocalCall& call) : call_(call) {}

  bool has(std::string_view name) const { return find(name) >= 0; }
  const c10::IValue& value(std::string_view name) const;  // throws if there is none
  at::Tensor tensor(std::string_view name) const;         // undefined for None
  std::int64_t integer(std::string_view name) const { return value(name).toInt(); }
  bool flag(std::string_view name) const { return has(name) && value(name).toBool(); }  // false if absent
  std::optional<at::ScalarType> dtype() const;                                          // the argument `dtype`
  // Spec of a tensor argument; null for an absent one and for a tensor without a spec, which counts as Replicate.
  const TensorSpec* spec(std::string_view name) const;
  // The `dim` argument (int, int[] or absent: all) as non-negative dimensions of `self`.
  std::vector<std::int64_t> reduced_dims() const;
  std::int64_t dim() const;  // the `dim` argument as a non-negative dimension of `self`
  at::IntArrayRef global_sizes(std::string_view name) const;

 private:
  int find(std::string_view name) const;
  int operand_of(int argument) const;

  const LocalCall& call_;
};

// This rank's global indices along `dim`, of size n; all of them for a null spec.
Segments own_segments(const TensorSpec* spec, std::int64_t dim, std::int64_t n);

// A tensor of global indices as local ones: whether this rank owns each, and its local index (0 if it does not).
struct LocalIndex {
  at::Tensor own;    // bool
  at::Tensor local;  // int64
};
LocalIndex to_local_index(const at::Tensor& global, const Segments& segments);
at::Tensor to_global(const at::Tensor& local, const Segments& segments);

// Throws unless every index is in [0, size). On a device it asserts asynchronously, since reading would synchronize.
void check_indices(const at::Tensor& index, std::int64_t size, const char* what);

// Reduces `tensor` over the ranks of `axes`, in place if it is contiguous. Returns it unchanged for no axes. bool is
// reduced as uint8.
at::Tensor all_reduce(const MeshImpl& mesh, at::Tensor tensor, ReduceOp op, AxisMask axes);
// all_reduce, except along axes on which output `index` is Partial(op).
at::Tensor reduce_contribution(const LocalCall& call, at::Tensor tensor, ReduceOp op, AxisMask axes, int index = 0);

// The index of an argument in the schema.
std::int64_t index_of(const LocalCall& call, const char* name);
// Replaces the value of an argument of the call.
void set_argument(LocalCall& call, const char* name, c10::IValue value);
// Replaces the arguments on the stack by the results, which are first written to out= and mutated arguments.
void set_results(LocalCall& call, std::vector<at::Tensor> results);
// Whether this rank's shard has size 0 in a dimension whose global size is not 0.
bool is_empty_shard(const TensorSpec& spec);
// If this rank's shard of an operand is empty, sets results of zeros with the local sizes of the outputs and returns
// true. Otherwise returns false.
bool return_zeros_if_empty(LocalCall& call);
// The results of the ATen operator on the local arguments. The arguments stay on the stack for set_results().
std::vector<at::Tensor> run_aten_operator(LocalCall& call);

// float for half types, otherwise the type itself.
inline at::ScalarType accumulate_type(at::ScalarType type) { return at::toOpMathType(type); }
// The identity of a max (min) reduction: the lowest (highest) value of the type.
at::Scalar reduce_identity(at::ScalarType type, ReduceOp op);

}  // namespace dtensor
