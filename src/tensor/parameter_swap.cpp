// Registry of tensors that were parameters of a model and have been replaced. It holds weak references, so a reused
// address is not mistaken for an old tensor. It is global, since a model may be created and trained on different
// threads.
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "dtensor/tensor.h"
#include "internal/parameter_swap.h"

namespace dtensor {
namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Replaced {
  Weak former;
  std::vector<Weak> by;  // replacements in each model and on each thread

  // An entry is needed as long as two replacements live, since they must be distinguished.
  bool is_over() const {
    return former.expired() && std::count_if(by.begin(), by.end(), [](const Weak& t) { return !t.expired(); }) < 2;
  }
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Replaced> tensors;
  std::atomic<std::uint64_t> swaps{0};
};

Registry& registry() {
  static Registry all;
  return all;
}

using Slots = std::unordered_map<const c10::TensorImpl*, const NamedTensors::value_type*>;

// The slot that holds a replacement of the tensor; null if none does.
const NamedTensors::value_type* successor(const Replaced& tensor, const Slots& slots) {
  const NamedTensors::value_type* found = nullptr;
  for (const Weak& by : tensor.by) {
    const auto slot = slots.find(by._unsafe_get_target());
    if (slot == slots.end()) continue;
    TORCH_CHECK(found == nullptr, "parameters '", slot->second->first, "' and '", found == nullptr ? "" : found->first,
                "' were one tensor, but were distributed separately and are two tensors now. Pass tied ",
                "parameters in one call, or distribute one of them before the call for the model");
    found = slot->second;
  }
  return found;
}

}  // namespace

void record_parameter_swap(const at::Tensor& former) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  ++all.swaps;
  std::erase_if(all.tensors, [](const auto& entry) { return entry.second.is_over(); });
  all.tensors.emplace(former.unsafeGetTensorImpl(), Replaced{Weak(former.getIntrusivePtr()), {}});
}

void record_parameter_swap(const at::Tensor& former, const at::Tensor& by) {
  record_parameter_swap(former);
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  auto& known = all.tensors.at(former.unsafeGetTensorImpl()).by;
  std::erase_if(known, [](const Weak& each) { return each.expired(); });
  known.emplace_back(by.getIntrusivePtr());
}

std::uint64_t parameter_swap_count() { return registry().swaps.load(); }

bool is_swapped_out(const at::Tensor& tensor) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.tensors.contains(tensor.unsafeGetTensorImpl());
}

void retie_shared_parameters(const NamedTensors& tensors) {
  Slots slots;
  for (const auto& item : tensors) {
    if (item.second->defined()) slots.emplace(item.second->unsafeGetTensorImpl(), &item);
  }
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::pair<const c10::TensorImpl*, at::Tensor>> ties;
  for (const auto& [former, replaced] : all.tensors) {
    if (const auto* by = successor(replaced, slots); by != nullptr) ties.emplace_back(former, *by->second);
  }
  for (const auto& [name, slot] : tensors) {
    const auto tie = std::find_if(ties.begin(), ties.end(),
                                  [&, held = slot->unsafeGetTensorImpl()](const auto& t) { return t.first == held; });
    if (tie != ties.end()) *slot = tie->second;
  }
}

}  // namespace dtensor
