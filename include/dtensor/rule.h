// Sharding rules. A rule states in one line of notation which index spaces the tensors of an operator share. The
// library derives the operator's strategies from its rule and picks the cheapest. See docs/rules.md for the notation by
// example.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

// Metadata of a returned tensor (or entry of a returned list) as one device would return it.
struct OutputMeta {
  bool defined = true;  // False for an undefined tensor, or for a return that is not a tensor.
  // The (replicated) local result has the sizes, which may depend on data. A dry run takes `sizes`, if there are any.
  bool from_local = false;
  // Global sizes and strides.
  at::DimVector sizes = {};
  at::DimVector strides = {};
  std::int64_t offset_delta = 0;  // For views: storage offset minus that of the aliased operand.
  // Dtype of the result.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

// The arguments of a call as a rule reads them: by name, and tensor operands by index in schema order, with lists
// flattened.
class DTENSOR_API OpArgs {
 public:
  // Sizes or strides of an operand. Access to a dimension that does not exist throws an error with the operator, the
  // operand and the number of dimensions that the rule needs.
  class DTENSOR_API Extents : public at::IntArrayRef {
   public:
    Extents(const OpArgs& op, int operand, at::IntArrayRef values)
        : at::IntArrayRef(values), op_(&op), operand_(operand) {}

    // Returns *this; throws if there are fewer than `rank` dimensions.
    const Extents& require(std::size_t rank) const;
    std::int64_t operator[](std::size_t dim) const { return require(dim + 1).data()[dim]; }
    std::int64_t from_end(std::size_t i) const { return require(i).data()[size() - i]; }  // 1 is the last dimension.
    std::int64_t back() const { return from_end(1); }
    at::IntArrayRef drop_back(std::size_t count) const { return require(count).slice(0, size() - count); }

   private:
    const OpArgs* op_;
    int operand_;
  };

  // The named argument. Throws with the operator's name if there is none.
  const c10::IValue& arg(std::string_view name) const;
  bool has_arg(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const;
  double number(std::string_view name, double if_none = 0) const;   // A float or Scalar argument.
  std::vector<std::int64_t> integers(std::string_view name) const;  // An int or int[] argument; empty for None.
  // An int[] argument of `count` entries, to which a single number expands. Throws for another length.
  std::vector<std::int64_t> integers(std::string_view name, std::size_t count) const;
  // The named int argument as a non-negative dimension of operand 0.
  std::int64_t dim(std::string_view name) const;
  // The named int[] as non-negative dimensions of operand 0; all of them for None or empty.
  std::vector<std::int64_t> dims(std::string_view name) const;

  // Number of tensor operands, including undefined ones and entries of lists.
  int operand_count() const;
  std::string_view operand_arg(int operand) const;  // Name of the argument that the operand belongs to.
  // Whether the caller passed a defined tensor.
  bool defined(int operand) const;
  Extents sizes(int operand) const;  // Global sizes.
  Extents strides(int operand) const;
  // Whether the operand is Partial along any mesh axis.
  bool has_partial(int operand) const;
  c10::ScalarType dtype(int operand) const;
  c10::DeviceType device() const;  // Device of the mesh.
  // Index of the first operand of the named argument; -1 if the argument is absent or has no operands.
  int operand(std::string_view arg) const;
  // Number of flattened results. Before outputs are inferred: number of returns in the schema.
  int result_count() const;
  const OutputMeta& result(int index) const;
};

struct RuleData;
// The factors of one operator's tensors and permissions for Partial. Build a rule from notation, such as "mk, kn -> mn"
// where letters name factors, or with factor(), operand() and result(). Rules have value semantics: changing a copy
// does not change the original.
class DTENSOR_API Rule {
 public:
  // Factors of one dimension of an operand or result, major first (empty: never sharded), and those of all dimensions.
  using DimFactors = c10::SmallVector<int, 2>;
  using Term = c10::SmallVector<DimFactors, 5>;
  // Indices of operands, a function for the metadata of results, and a function for the dimensions that a name means.
  using Operands = std::vector<int>;
  using Outputs = std::function<std::vector<OutputMeta>(const OpArgs&)>;
  using Dims = std::function<std::vector<std::int64_t>(const OpArgs&)>;
  using Function = std::function<Rule(const OpArgs&)>;  // returns the rule for a call

  Rule();
  Rule(std::string_view text);  // NOLINT: implicit conversion from notation
  Rule(const char* text) : Rule(std::string_view(text)) {}
  explicit Rule(RuleData data);
  // The rule of a view: operand 0 with the sizes of result 0, in the same row-major order of elements.
  static Rule view(at::IntArrayRef in_sizes, at::IntArrayRef out_sizes);

  // Sets of operands that may be Partial(sum or avg) together while the others are Replicate. The result is then
  // Partial.
  Rule& linear(Operands a, Operands b = {}, Operands c = {}, Operands d = {});
  Rule& monotone(Operands a, ReduceOp op);  // The same for Partial(op), where op is max or min.
  Rule& structural(Operands a);             // The same for any Partial: the operator only moves elements.
  Rule& structural();                       // The same for all operands together, for notation with packs.
  // `names` below are letters of factors and packs, "..." for the batch, or the one name of a slot ("dim").
  Rule& unsharded(std::string_view names);  // Never sharded.
  Rule& reduce(ReduceOp op);                // A contracted factor leaves Partial(op) instead of Partial(sum).
  Rule& nonempty(std::string_view names);   // Sharded only if every rank has an element.
  // Factors that may be sharded if the named local kernel runs. Results without them are Partial(sum).
  Rule& sharded_by_kernel(std::string_view names, std::string kernel);
  Rule& kernel_gives(ReduceOp op);
  Rule& kernel_gives_replicate();
  Rule& kernel_gives_replicate_scalars();  // Results without dimensions are Replicate, others Partial.
  Rule& kernel(std::string name);          // The local kernel always runs.
  // The operator writes these operands although the schema does not say so. They keep their placements.
  Rule& writes(Operands operands);
  // The operator uses only the sizes of this operand, so a Partial is not reduced.
  Rule& values_unused(int operand);
  // The operator uses neither values nor sizes of this operand; it is passed unchanged.
  Rule& ignored(int operand);
  Rule& local_strides(std::string arg, int result = 0);  // The int[] argument becomes dense local strides.
  Rule& local_size(std::string arg, int result = 0);     // The int[] argument becomes the result's local sizes.
  Rule& reads_storage_shards();                          // Storage shards are Shard instead of Replicate.
  Rule& keeps_storage_shards();                          // The same, and results are storage shards too.
  Rule& reads_scalars();                                 // The rule's function reads float or Scalar arguments.
  Rule& outputs(Outputs fn);                             // Metadata of results, for operators without a meta kernel.
  // The same, with sizes from the factors, contiguous, with the dtype of operand 0.
  Rule& no_meta();
  // Properties of the operator, independent of the call (also if a function returns the rule).
  // Each position of the operator's lists is a call of its own and may be on a mesh of its own.
  Rule& foreach_op();
  Rule& overwrites();                               // Operand 0 is written but not read.
  Rule& values_unused_if_zero(std::string number);  // Operand 0 is not read if this argument is 0.
  // Result 0 is the gradient of a parameter and gets the placements of the parameter.
  Rule& follows_parameter_placement();
  Rule& uninitialized_results();  // Results are uninitialized memory.
  // Results after the first are only for the operator's own backward, so they are not compared.
  Rule& saved_for_backward();
  Rule& not_random();  // The operator is tagged as random but is not.
  // Operands include results that the forward kernel saved in a form of its device, so a kernel of another device may
  // reject them.
  Rule& takes_saved_results();
  // Values of operands must satisfy conditions (pivots, lengths of segments), which zeros and ones may violate.
  Rule& restricts_values();
  // The second tensor argument holds indices into operand 0. `along` is a dimension: the name of an argument, a number,
  // "flat" for the flattened operand, or "each" for a list with one entry per dimension. If `from_end`, -1 is the last
  // index. `ignored` names the argument whose value is not an index.
  Rule& indexes(std::string along, bool from_end = false, std::string ignored = {});

  // The dimensions that [name] means, counted from the left, if they are not those of an argument with that name.
  Rule& dims(std::string name, Dims fn);

  int factor(std::string name = {}, std::int64_t size = -1);  // `size` is needed only in compound dimensions.
  // operand() and result() add a term. unsharded_factor() excludes a factor from sharding.
  Rule& operand(Term term);
  Rule& result(Term term);
  Rule& unsharded_factor(int factor);

  // For the library's own use.
  const RuleData& data() const { return *data_; }
  std::string notation() const;  // The terms only.
  std::string str() const;       // The terms and all permissions.

 private:
  // Copies the data if another Rule shares it.
  RuleData& edit();

  std::shared_ptr<RuleData> data_;
};

// The rules of all operators, shared by thread ranks. While ranks run, register only finished rules and do not modify
// returned ones.
class DTENSOR_API RuleBook {
 public:
  // The book of this process.
  static RuleBook& get();

  // `op` is "aten::mm" (all overloads without a rule of their own) or "aten::sum.dim_IntList".
  Rule& rule(const std::string& op, Rule rule);
  Rule& rule(const std::string& op, const char* text) { return rule(op, Rule(text)); }
  // `properties` of the returned rule (reads_scalars, outputs) apply to every rule that the function returns. `about`
  // describes the function in listings.
  Rule& rule(const std::string& op, Rule::Function function, std::string about = "of the call");
  void for_tag(at::Tag tag, Rule::Function function);
  void replicate(const std::string& op, std::string why);
  void refuse(const std::string& op, std::string why);

 private:
  RuleBook();
};

// Verification of sharding rules without a communicator. The operands of a call are sharded as each strategy of the
// rule requires. The operator then runs on the parts of each rank, one after the other in this thread. The combined
// results are compared with the result of one device.

// The strategies of a rule for one call on a one-dimensional mesh, and which of them are correct.
struct RuleReport {
  // False: the library decomposes the operator, so no rule applies.
  bool by_rule = true;
  // Number of strategies that the rule offers, of correct ones, and of those that need a local kernel, which only ranks
  // can run.
  int offered = 0, sound = 0, by_kernel = 0;
  // Strategies that are offered but wrong: operands, results and the difference. Strategies that are correct but not
  // offered (only with `search`), as placements of the operands: "[S(0)], [R]".
  std::vector<std::string> unsound = {}, missing = {};
  // Bytes moved relative to the minimum, for operands split by their first and by their last dimension.
  std::vector<double> bytes = {};
};

// Verifies the rule of `op` ("my::scale_rows", "aten::add.Tensor": with its overload) for `ranks` ranks on one call.
// `args` are all arguments in the order of the schema, with defaults filled in; tensors are regular CPU tensors. They
// are not changed.
// `search` also looks for correct strategies that are not offered. This runs the operator on parts that do not fit
// together. A kernel that does not check its operands may then write out of bounds, so use a process that may crash.
// Throws if the call itself throws.
DTENSOR_API RuleReport verify_rule(const std::string& op, const std::vector<c10::IValue>& args, std::int64_t ranks,
                                   bool search = false);

// Verifies the decisions on a mesh of several dimensions for `tries` placements of the operands, from a fixed random
// sequence. Returns the wrong decisions as text.
DTENSOR_API std::vector<std::string> verify_rule_on_mesh(const std::string& op, const std::vector<c10::IValue>& args,
                                                         at::IntArrayRef mesh_shape, int tries = 8);

}  // namespace dtensor
