// What a local kernel asks of its call: arguments by schema name, the specs of its tensors, where this rank's part lies
// in the whole, and how contributions are combined over the mesh axes that split a factor. Kernels stay free of stack
// offsets, operand numbers and placement arithmetic.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <optional>
#include <string_view>
#include <vector>

#include "internal/contiguous_ranges.h"
#include "ops/local_kernels/local_kernel.h"
#include "placement/shard_map.h"

namespace dtensor {

class LocalArgs {
 public:
  explicit LocalArgs(const LocalCall& call) : call_(call) {}

  bool has(std::string_view name) const { return find(name) >= 0; }
  const c10::IValue& value(std::string_view name) const;  // error names the operator if there is none
  at::Tensor tensor(std::string_view name) const;         // undefined for None
  std::int64_t integer(std::string_view name) const { return value(name).toInt(); }
  bool flag(std::string_view name) const { return has(name) && value(name).toBool(); }  // false where absent
  std::optional<at::ScalarType> dtype() const;                                          // the argument of that name
  // Spec of a tensor argument; null for a plain or absent one, which counts as Replicate.
  const TensorSpec* spec(std::string_view name) const;
  // `dim` argument (int, int[] or absent: all) as non-negative dimensions of `self`.
  std::vector<std::int64_t> reduced_dims() const;
  std::int64_t dim() const;  // `dim` argument as one non-negative dimension of `self`
  at::IntArrayRef global_sizes(std::string_view name) const;

 private:
  int find(std::string_view name) const;
  int operand_of(int argument) const;

  const LocalCall& call_;
};

// The operator without its namespace and overload: "amax".
std::string_view base_name(const LocalCall& call);

// Mesh axes of more than one rank that split any of `dims`; 0 for a null spec.
AxisMask shard_axes(const TensorSpec* spec, at::IntArrayRef dims);
AxisMask shard_axes(const TensorSpec* spec);  // any dimension

// This rank's global indices along `dim`; all of `n` for a null spec.
Segments own_segments(const TensorSpec* spec, std::int64_t dim, std::int64_t n);

// The segments of each rank along `axes`, in the order of their communicator.
std::vector<Segments> segments_of_ranks(const TensorSpec& spec, std::int64_t dim, AxisMask axes);

// A tensor of global indices seen from this rank: whether it holds each, and where (0 where it does not).
struct LocalIndex {
  at::Tensor own;    // bool
  at::Tensor local;  // int64
};
LocalIndex to_local_index(const at::Tensor& global, const Segments& segments);
at::Tensor to_global(const at::Tensor& local, const Segments& segments);

// As ATen: error unless every index is in [0, size); an assertion on the device where reading it would synchronise.
void check_indices(const at::Tensor& index, std::int64_t size, const char* what);

// Sum, maximum, ... of `tensor` over the ranks of `axes`, in place where it is contiguous; nothing for no axes. bool is
// reduced as uint8.
at::Tensor all_reduce(const MeshImpl& mesh, at::Tensor tensor, ReduceOp op, AxisMask axes);
// The same, but contributions stay as they are on the axes where output `index` is to be Partial(op).
at::Tensor reduce_contribution(const LocalCall& call, at::Tensor tensor, ReduceOp op, AxisMask axes, int index = 0);

// Of an argument, on a stack of the call's arguments alone.
std::int64_t index_of(const LocalCall& call, const char* name);
// Gives an argument of the call another value.
void set_argument(LocalCall& call, const char* name, c10::IValue value);
// Replaces the arguments on the stack by the results: returned, or written to the out= or mutated argument.
void set_results(LocalCall& call, std::vector<at::Tensor> results);
// Whether this rank's part has no elements along a dimension that has some in the whole.
bool is_empty_shard(const TensorSpec& spec);
// Where this rank's part of a split operand has no elements: results of zeros, of the sizes that the call asks for.
// False where there is something to compute.
bool return_zeros_if_empty(LocalCall& call);
// What the plain operator returns, one per return. The arguments stay on the stack for give().
std::vector<at::Tensor> run_aten_operator(LocalCall& call);

// float for half types, else the type itself.
inline at::ScalarType accumulate_type(at::ScalarType type) { return at::toOpMathType(type); }
// The value that changes no maximum (minimum): lowest (highest) of the type.
at::Scalar reduce_identity(at::ScalarType type, ReduceOp op);

}  // namespace dtensor
