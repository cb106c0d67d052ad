// Sharding rules: which index spaces an operator's tensors share, in one line of text per operator. From a rule the
// engine derives the strategies of an operator, prices them and chooses; see docs/rules.md for the grammar by example.
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

// A returned tensor (or entry of a returned list) as one device would return it.
struct OutputMeta {
  bool defined = true;      // false: an undefined tensor, or a return that is no tensor
  bool from_local = false;  // sizes are known only from the (replicated) local result: data-dependent operators
  // Global sizes and strides.
  at::DimVector sizes = {};
  at::DimVector strides = {};
  std::int64_t offset_delta = 0;  // views: storage offset minus that of the aliased operand
  // Of the result.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

class OpArgs;

// Sizes or strides of an operand. Asked for a dimension that the operand has not, each throws an error that names the
// operator, the operand and how many dimensions it needs.
class DTENSOR_API Extents : public at::IntArrayRef {
 public:
  Extents(const OpArgs& op, int operand, at::IntArrayRef values)
      : at::IntArrayRef(values), op_(&op), operand_(operand) {}

  // *this, where there are at least `rank` dimensions.
  const Extents& require(std::size_t rank) const;
  std::int64_t operator[](std::size_t dim) const { return require(dim + 1).data()[dim]; }
  std::int64_t from_end(std::size_t i) const { return require(i).data()[size() - i]; }  // 1: the last
  std::int64_t back() const { return from_end(1); }
  at::IntArrayRef drop_back(std::size_t count) const { return require(count).slice(0, size() - count); }

 private:
  const OpArgs* op_;
  int operand_;
};

// What a rule may ask of a call: arguments by name, and its tensor operands in schema order, lists flattened.
class DTENSOR_API OpArgs {
 public:
  // Argument by name; error names the operator if there is none.
  const c10::IValue& arg(std::string_view name) const;
  bool has_arg(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const;
  double number(std::string_view name, double if_none = 0) const;   // float or Scalar
  std::vector<std::int64_t> integers(std::string_view name) const;  // int or int[]; empty for None
  // The same for `count` dimensions: one number stands for all; error for another length.
  std::vector<std::int64_t> integers(std::string_view name, std::size_t count) const;
  // The named int argument as a non-negative dimension of operand 0.
  std::int64_t dim(std::string_view name) const;
  // The named int[] as non-negative dimensions of operand 0; all of them for None or empty.
  std::vector<std::int64_t> dims(std::string_view name) const;

  // Of tensors, undefined ones and entries of lists included.
  int operand_count() const;
  std::string_view operand_arg(int operand) const;  // name of its argument
  // Whether the caller gave it.
  bool defined(int operand) const;
  Extents sizes(int operand) const;  // global
  Extents strides(int operand) const;
  // Whether an axis holds shares of its values; its dtype.
  bool has_partial(int operand) const;
  c10::ScalarType dtype(int operand) const;
  c10::DeviceType device() const;  // of the mesh
  // Index of the first operand that belongs to the named argument; -1 if the argument is absent or has none.
  int operand(std::string_view arg) const;
  int result_count() const;  // flattened; before outputs are inferred: the schema's
  const OutputMeta& result(int index) const;
};

struct RuleData;
// One dimension of an operand or result: its factors, major first. Empty: never sharded.
using RuleDim = c10::SmallVector<int, 2>;
using RuleTerm = c10::SmallVector<RuleDim, 5>;

// One operator's factors. Text: "mk, kn -> mn"; the letters name factors. Built by hand: factor(), operand(), result().
// A value: a copy is a rule of its own.
class DTENSOR_API Rule {
 public:
  // Positions of operands; sizes of results; dimensions that a name means.
  using Operands = std::vector<int>;
  using Outputs = std::function<std::vector<OutputMeta>(const OpArgs&)>;
  using Dims = std::function<std::vector<std::int64_t>(const OpArgs&)>;

  Rule();
  Rule(std::string_view text);  // NOLINT: a text is a rule
  Rule(const char* text) : Rule(std::string_view(text)) {}
  explicit Rule(RuleData data);

  // Sets of operands that may be Partial(sum or avg) together, the others being Replicate: the result is Partial too.
  Rule& linear(Operands a, Operands b = {}, Operands c = {}, Operands d = {});
  Rule& monotone(Operands a, ReduceOp op);  // Partial(op), op = max or min
  Rule& structural(Operands a);             // any Partial: the operator only moves elements
  Rule& structural();                       // the same of all operands together; for texts with packs
  // `names` below: letters of factors and packs, "..." for the batch, or the one name of a place ("dim").
  Rule& unsharded(std::string_view names);  // never sharded
  Rule& reduce(ReduceOp op);                // what a contracted factor leaves: Partial(op) instead of Partial(sum)
  Rule& nonempty(std::string_view names);   // sharded only if every rank holds an element
  // Factors that may be sharded provided that the named local kernel runs; results without them are Partial(sum).
  Rule& sharded_by_kernel(std::string_view names, std::string kernel);
  Rule& kernel_gives(ReduceOp op);
  Rule& kernel_gives_replicate();
  Rule& kernel_gives_replicate_scalars();  // results of no dimensions are Replicate, others Partial
  Rule& kernel(std::string name);          // the local kernel runs always
  Rule& writes(Operands operands);         // written, though the schema does not say so: they keep their placements
  Rule& values_unused(int operand);        // its values do not matter, only its sizes: a Partial need not be reduced
  Rule& ignored(int operand);              // neither: it is given as it is
  Rule& local_strides(std::string arg, int result = 0);  // int[] argument replaced by dense local strides
  Rule& local_size(std::string arg, int result = 0);     // int[] argument replaced by the result's local sizes
  Rule& reads_storage_shards();                          // storage shards count as what they are
  Rule& keeps_storage_shards();                          // the same, and results keep the flag
  Rule& reads_scalars();                                 // the rule's function reads float or Scalar arguments
  Rule& outputs(Outputs fn);                             // sizes of results, for operators without a meta kernel
  Rule& no_meta();  // the same, sizes by the text's letters, contiguous, operand 0's dtype
  // What holds for the operator, whatever the call (also where a function gives the rule).
  Rule& foreach_op();  // each position of its lists is a call of its own, perhaps on a mesh of its own
  Rule& overwrites();  // operand 0 is written and not read: its content may be anything
  Rule& values_unused_if_zero(std::string number);  // so it is, written or not, where the argument of that name is 0
  Rule& follows_parameter_placement();  // result 0 is laid out as the parameter is whose gradient it becomes
  Rule& uninitialized_results();        // results hold whatever the memory held
  Rule& saved_for_backward();  // results after the first are for the operator's own backward: nobody else compares them
  Rule& not_random();          // though it is tagged as random
  // The second argument of tensors holds indices into operand 0: `along` the dimension that an argument of that name or
  // a number gives, "flat", or "each" for a list with an entry per dimension. `from_end`: -1 is the last one;
  // `ignored`: the argument whose value is no index.
  Rule& indexes(std::string along, bool from_end = false, std::string ignored = {});

  // The dimensions that [name] means, counted from the left, where they are not those of an argument with that name.
  Rule& dims(std::string name, Dims fn);

  int factor(std::string name = {}, std::int64_t size = -1);  // size: needed where it occurs in compounds only
  // Adds an operand, a result; makes a factor whole.
  Rule& operand(RuleTerm term);
  Rule& result(RuleTerm term);
  Rule& unsharded_factor(int factor);

  // For the engine.
  const RuleData& data() const { return *data_; }
  std::string notation() const;  // the terms alone
  std::string str() const;       // and every permission

 private:
  RuleData& edit();  // its own from now on

  std::shared_ptr<RuleData> data_;
};

// A rule that depends on the call.
using RuleFunction = std::function<Rule(const OpArgs&)>;

// Operand 0 seen with the sizes of result 0 (row-major order of elements kept).
DTENSOR_API Rule view_factors(at::IntArrayRef in_sizes, at::IntArrayRef out_sizes);

// The rules of all operators, shared by thread ranks: while they run, register finished rules only, and change none
// returned.
class DTENSOR_API RuleBook {
 public:
  // The one of this process.
  static RuleBook& get();

  // "aten::mm" (every overload without a rule of its own) or "aten::sum.dim_IntList".
  Rule& rule(const std::string& op, Rule rule);
  Rule& rule(const std::string& op, const char* text) { return rule(op, Rule(text)); }
  // `properties` of the returned rule (reads_scalars, outputs) count for every rule that the function returns.
  // `about` stands for the function where rules are listed.
  Rule& rule(const std::string& op, RuleFunction function, std::string about = "of the call");
  void for_tag(at::Tag tag, RuleFunction function);
  void replicate(const std::string& op, std::string why);
  void refuse(const std::string& op, std::string why);

 private:
  RuleBook();
};

// Proving sharding rules by trial, without a communicator: the operands of a call are cut as each strategy that the
// operator's rule offers asks, the plain operator runs on the parts rank by rank in this thread, and what it gives is
// put together and compared with one device.

// What a rule offers for one call on a one-dimensional mesh, against what is true.
struct RuleReport {
  // False: the engine takes the operator apart itself, and no rule decides it.
  bool by_rule = true;
  // Strategies that the rule offers; those that hold; those that a local kernel carries out, which only ranks can run.
  int offered = 0, sound = 0, by_kernel = 0;
  // Offered and wrong: operands, results, and what differs. True and not offered (search only): placements of the
  // operands, "[S(0)], [R]".
  std::vector<std::string> unsound = {}, missing = {};
  // For operands split by their first and by their last dimension: bytes moved over the least.
  std::vector<double> bytes = {};
};

// Tries the rule of `op` ("my::scale_rows", "aten::add.Tensor": with its overload) on the call `args` (plain CPU
// tensors and whatever else the schema asks for, in its order, defaults filled in; not changed) for `ranks` ranks.
// `search`: looks for what is not offered as well. That runs the operator on parts which do not belong together, and a
// kernel that does not check its operands may write past its results then: do it in a process that may die. Throws
// where the call itself does.
DTENSOR_API RuleReport verify_rule(const std::string& op, const std::vector<c10::IValue>& args, std::int64_t ranks,
                                   bool search = false);

// The decisions on a mesh of several dimensions for `tries` placements of the operands, drawn alike each time; the
// wrong ones as text.
DTENSOR_API std::vector<std::string> verify_rule_on_mesh(const std::string& op, const std::vector<c10::IValue>& args,
                                                         at::IntArrayRef mesh_shape, int tries = 8);

}  // namespace dtensor
