// The public functions. They accept an operator of any library.
#include "dtensor/rule.h"

#include "ops/dispatch/operator_entry.h"
#include "ops/dispatch/registration.h"
#include "verify/search.h"

namespace dtensor {
namespace {

c10::OperatorHandle find(const std::string& op) {
  ensure_registered();
  const auto dot = op.find('.', op.find("::") == std::string::npos ? 0 : op.find("::"));
  const auto overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str());
}

bool is_by_rule(const c10::OperatorHandle& op) { return entry_of(op).special == nullptr; }

}  // namespace

RuleReport verify_rule(const std::string& op, const std::vector<c10::IValue>& args, std::int64_t ranks, bool search) {
  TORCH_CHECK(ranks >= 1, "verify_rule: expected at least 1 rank, got ", ranks);
  const auto handle = find(op);
  if (!is_by_rule(handle)) return {.by_rule = false};
  return verify::verify_sample({handle, args}, ranks, search);
}

std::vector<std::string> verify_rule_on_mesh(const std::string& op, const std::vector<c10::IValue>& args,
                                             at::IntArrayRef mesh_shape, int tries) {
  const auto handle = find(op);
  if (!is_by_rule(handle)) return {};
  return verify::verify_mesh({handle, args}, mesh_shape, tries);
}

}  // namespace dtensor
