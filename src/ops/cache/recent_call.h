// The fast path of a cache hit: compares the arguments of a call directly with the keys of the operator's recent calls,
// without building a key.
#pragma once

#include <array>

#include "ops/cache/decision_cache.h"
#include "ops/dispatch/kernel_guard.h"

namespace dtensor {

// Receives the words of a key and compares them with an existing key.
class KeyMatch : public KeyBuilder<KeyMatch> {
 public:
  KeyMatch() = default;  // matches no key
  explicit KeyMatch(const CallKey& key) : next_(key.begin()), end_(key.end()), differs_(false) {}

  void word(std::uint64_t word) {
    if (C10_LIKELY(next_ != end_ && *next_ == word)) {
      ++next_;
    } else {
      differ();
    }
  }
  void value(const c10::IValue& /*value*/) { differ(); }  // rare kinds of arguments
  void scalar(const c10::IValue& /*value*/, bool /*values*/) { differ(); }
  using KeyBuilder::scalar;
  void differ() { next_ = end_ = nullptr, differs_ = true; }
  bool is_full() const { return !differs_ && next_ == end_; }

 private:
  const std::uint64_t* next_ = nullptr;
  const std::uint64_t* end_ = nullptr;
  bool differs_ = true;
};

// Receives arguments as CallOperands does. Each next() selects a recent call with the same spec of the first operand;
// the arguments are then added. State outside the key (scopes, materialized views, leaves without a gradient pipeline)
// counts as a mismatch, so that the general path runs.
class RecentCall {
 public:
  C10_ALWAYS_INLINE RecentCall(const OpEntry& entry, const KernelGuard& guard, const ThreadState& thread,
                               const at::Tensor& first)
      : key_holds_floats(entry.rule().reads_scalars), thread_cache_(thread.cache) {
    const auto* tensor = dtensor_or_null(first);
    if (tensor == nullptr || guard.any_operator_scope()) return;
    if (thread_cache_ == nullptr || entry.index >= thread_cache_->ops.size() || !thread_cache_->is_current()) return;
    op_cache_ = &thread_cache_->ops[entry.index];
    first_ = CallKey::spec_word(tensor->spec().get());
  }

  // Selects the next recent call to compare with; false if there is none.
  bool next() {
    if (op_cache_ == nullptr) return false;
    while (at_ < OpCache::kRecent) {
      const auto i = at_++;
      if (op_cache_->first_words[i] != first_ || !op_cache_->recent[i]->unboxable) continue;
      call_ = op_cache_->recent[i].get();
      key = KeyMatch(call_->key);
      count_ = 0;
      return true;
    }
    return false;
  }

  KeyMatch key;
  const bool key_holds_floats;  // values of floats are part of the key

  void add(c10::TensorImpl* impl) {
    if (impl == nullptr || !has_dtensor_key(impl)) return add_regular(impl);
    auto* tensor = as_dtensor(impl);
    if (C10_UNLIKELY(tensor->has_alternate_data() || !has_pipeline_or_needs_none(*tensor))) return key.differ();
    keep(tensor);
    key.spec(tensor->spec().get());
  }
  void add(at::TensorList /*values*/) { key.differ(); }

  // The matching call, or null.
  const CachedCall* found() {
    if (C10_UNLIKELY(!key.is_full())) return nullptr;
    ++thread_cache_->stats.hits;
    return call_;
  }
  c10::ArrayRef<c10::TensorImpl*> tensors() const { return {tensors_.data(), count_}; }

 private:
  void add_regular(c10::TensorImpl* impl) {
    if (impl != nullptr && impl != c10::UndefinedTensorImpl::singleton()) return key.differ();
    keep(nullptr);
    key.absent();
  }
  void keep(c10::TensorImpl* impl) {
    if (count_ == tensors_.size()) return key.differ();
    tensors_[count_++] = impl;
  }

  ThreadCache* const thread_cache_;
  const OpCache* op_cache_ = nullptr;
  const CachedCall* call_ = nullptr;
  std::uint64_t first_ = 0;
  std::size_t at_ = 0, count_ = 0;
  std::array<c10::TensorImpl*, 10> tensors_;
};

}  // namespace dtensor
