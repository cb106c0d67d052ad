// What a Rule holds: factors, terms and permissions, before it meets the sizes of a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

enum class HandledResult : std::uint8_t { partial, replicate };

struct Factor {
  std::string name;
  bool whole = false;
  int smallest = 0;  // sharded only where every rank's part has at least this length
  bool handled = false;
  std::int64_t size = -1;  // -1: taken from the tensors
};

struct Term {
  bool absent = false;  // never sharded
  bool once = false;    // '+': added once, so Replicate may become Partial
  bool repeat = false;  // '*': every further operand of the list
  int ellipsis = -1;    // position of '...' among dims
  RuleTerm dims;
};

using ReduceOps = std::uint8_t;  // bit i: ReduceOp i
constexpr ReduceOps bit(ReduceOp op) { return static_cast<ReduceOps>(1u << static_cast<unsigned>(op)); }
constexpr ReduceOps kLinearOps = bit(ReduceOp::sum) | bit(ReduceOp::avg);
constexpr ReduceOps kAnyOp = 0x1f;

struct Group {
  Rule::Operands operands;
  ReduceOps ops = 0;
};

enum class StorageView : std::uint8_t { replicate, shard, keep };

struct RuleData {
  std::string text;
  std::vector<Factor> factors;
  std::vector<Term> operands, results;
  std::vector<Group> groups;
  ReduceOp reduce = ReduceOp::sum;
  bool nonempty = false;
  std::string handler;  // of handled factors, or always
  bool handler_always = false;
  HandledResult handled_result = HandledResult::partial;
  ReduceOp handled_op = ReduceOp::sum;
  std::uint32_t handled_replicates = 0;  // bit i: result i
  StorageView storage = StorageView::replicate;
  bool reads_scalars = false;
  std::uint32_t unread = 0, ignored = 0, written = 0;  // bit i: operand i
  std::vector<std::pair<std::string, int>> size_patches, stride_patches;
  std::vector<std::pair<std::string, c10::IValue>> patches;
  Rule::Outputs outputs;
  bool letters_give_sizes = false;
};

// Throws with the text and the position.
void parse_rule(std::string_view text, RuleData& data);

}  // namespace dtensor
