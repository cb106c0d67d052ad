// Results with the same bits on every mesh, and hashes of tensors.
#include "dtensor/bit_identical.h"

#include <cstring>

#include "c/handles.h"
#include "c/status.h"

namespace dtensor::c {
namespace {

thread_local int current_block = 0;  // 0: no scope

}  // namespace

std::unique_ptr<const BitIdentical> bit_identical_scope() {
  return current_block == 0 ? nullptr : std::make_unique<const BitIdentical>(current_block);
}

}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_set_bit_identical(const dtensor_mesh* mesh, int block) {
  return guarded_on_all(__func__, {mesh}, [&] {
    agree(object(mesh).mesh.communicator(), [&] {
      if (block != 0) const dtensor::BitIdentical checks(block);
      return "block " + std::to_string(block);
    });
    current_block = block;
  });
}

dtensor_status dtensor_tensor_content_hash(const dtensor_tensor* tensor, char* digits) {
  return guarded_on_all(__func__, {tensor}, [&] {
    const auto& of = object(tensor).tensor;
    agree(of.mesh().communicator(), [&] { return required(digits, "pointer for the digits"), std::string(); });
    const std::string hash = dtensor::BitIdentical::content_hash(of);
    std::memcpy(digits, hash.c_str(), hash.size() + 1);
  });
}
