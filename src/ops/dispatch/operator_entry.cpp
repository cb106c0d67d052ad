// The table of entries of all operators that were registered or called.
#include "ops/dispatch/operator_entry.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "ops/local_kernels/special/special_kernel.h"

namespace dtensor {

OpEntry::OpEntry(const c10::OperatorHandle& handle, std::uint32_t entry_index)
    : OpInfo(handle), index(entry_index), special(find_special(*this)), text_(c10::toString(name())) {}

bool OpEntry::is_cast() const {
  return dtype_arg >= 0 && !mutates && !gives_view && rule().data().storage == StorageView::keep;
}

bool OpEntry::is_unread(std::size_t arg, c10::ArrayRef<c10::IValue> arguments) const {
  const auto& data = rule().data();
  if (args[arg].out) return true;
  if (arg != 0 || data.values_unused_if_zero.empty()) return arg == 0 && data.overwrites;
  const auto factor = schema().argumentIndexWithName(data.values_unused_if_zero);
  return factor && arguments[static_cast<std::size_t>(*factor)].toScalar().equal(0);
}

const OpEntry& entry_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto& entries = *new std::unordered_map<c10::OperatorName, std::unique_ptr<OpEntry>>();
  std::lock_guard lock(mutex);
  auto& slot = entries[op.operator_name()];
  if (!slot) slot = std::make_unique<OpEntry>(op, static_cast<std::uint32_t>(entries.size() - 1));
  return *slot;
}

}  // namespace dtensor
