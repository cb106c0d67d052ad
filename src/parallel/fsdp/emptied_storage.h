// Storages whose memory is freed while tensors refer to them, and filled again later.
#pragma once

#include <c10/core/StorageImpl.h>

#include <utility>

namespace dtensor::fsdp {

// `unsharded_in_module`: graphs may refer to the memory. In releases of LibTorch that support it, reading it then
// throws an error instead of crashing.
template <class Storage>
void empty_storage(Storage& storage, bool unsharded_in_module) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  if (!unsharded_in_module) return;
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "fully_shard: a gathered parameter is used while its unit is resharded. Backward gathers a unit when it "
        "reaches the outputs of the unit's module: return the tensors from which backward starts (those in lists, "
        "dictionaries and data classes are found), or set reshard_after_forward = false for the unit");
  }
}

template <class Storage>
void fill_storage(Storage& storage, c10::DataPtr memory) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(std::move(memory));
}

}  // namespace dtensor::fsdp
