// The registry of live handles.
#include "c/handles.h"

#include <c10/util/Exception.h>

#include <array>
#include <mutex>
#include <unordered_map>

namespace dtensor::c {
namespace {

struct Entry {
  Kind kind;
  Communicator ranks;
  std::shared_ptr<void> object;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::uintptr_t, Entry> live;
  std::uint64_t made = 0;
};

// Handles may be freed after static objects.
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

const char* name_of(Kind kind) {
  static constexpr std::array kNames{"mesh", "tensor", "module", "optimizer", "graph"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The n-th handle: a bijection of 64 bits (the finalizer of splitmix64) without n = 0, so that handles are distinct,
// not null, and unlike addresses and small numbers.
std::uintptr_t handle_number(std::uint64_t n) {
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
  return n ^ (n >> 31);
}

std::uintptr_t number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

}  // namespace

void* register_object(std::shared_ptr<void> object, Kind kind, const Communicator& ranks) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto handle = handle_number(++all.made);
  all.live.emplace(handle, Entry{kind, ranks, std::move(object)});
  return reinterpret_cast<void*>(handle);  // NOLINT(performance-no-int-to-ptr)
}

void* find_object(const void* handle, Kind kind, const char* what) {
  TORCH_CHECK_VALUE(handle != nullptr, "expected a ", what, ", got a null pointer");
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(number(handle));
  TORCH_CHECK_VALUE(found != all.live.end(), "expected a ", what, ", got a handle that was freed or that the library ",
                    "has not returned");
  TORCH_CHECK_VALUE(found->second.kind == kind, "expected a ", what, " (a handle of a ", name_of(kind),
                    "), got the handle of a ", name_of(found->second.kind));
  return found->second.object.get();
}

void free_object(const void* handle, Kind kind) {
  if (handle == nullptr) return;
  find_object(handle, kind, name_of(kind));
  std::shared_ptr<void> object;  // destroyed without the lock
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(number(handle));
  object = std::move(found->second.object);
  all.live.erase(found);
}

Communicator communicator_of(const void* handle) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(number(handle));
  return found == all.live.end() ? Communicator() : found->second.ranks;
}

TensorVector tensors_of(int count, const dtensor_tensor* const* handles, const char* what) {
  TORCH_CHECK_VALUE(count >= 1 && count <= kMaxTensors, "expected 1 to ", kMaxTensors, " ", what, "s, got ", count);
  required(handles, "list of tensors");
  TensorVector tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(object(handles[i], what).tensor);
  return tensors;
}

}  // namespace dtensor::c
