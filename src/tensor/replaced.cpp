// Which tensors were parameters of a model that has others now. Known weakly, so that no address is mistaken for
// another tensor's; for all threads, since a model may be made on one and trained on another.
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>

#include "dtensor/named_tensors.h"

namespace dtensor {
namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Replaced {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Weak> tensors;
};

Replaced& replaced() {
  static Replaced all;
  return all;
}

}  // namespace

void note_replaced(const at::Tensor& former) {
  auto& all = replaced();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.tensors, [](const auto& entry) { return entry.second.expired(); });
  all.tensors.emplace(former.unsafeGetTensorImpl(), Weak(former.getIntrusivePtr()));
}

bool was_replaced(const at::Tensor& tensor) {
  auto& all = replaced();
  const std::lock_guard lock(all.mutex);
  return all.tensors.contains(tensor.unsafeGetTensorImpl());
}

}  // namespace dtensor
