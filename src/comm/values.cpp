// Reads by way of a copy, writes by way of another that is copied back.
#include "comm/values.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "comm/followed_work.h"
#include "comm/memory/packed.h"
#include "dtensor/comm_backend.h"
#include "dtensor/plain_scope.h"

namespace dtensor {
namespace {

// What no backend takes is left to the check of the arguments.
bool is_plain(const at::Tensor& t) {
  return !t.defined() || !t.has_storage() || !(t.is_conj() || t.is_neg() || t._is_zerotensor());
}

at::Tensor stand_in(const Communicator& comm, const at::Tensor& output, bool read) {
  TORCH_CHECK(at::has_internal_overlap(output) != at::MemOverlap::Yes && !output._is_zerotensor(),
              "a collective's output whose elements share memory or have none, sizes ", output.sizes(), ", strides ",
              output.strides());
  const at::Tensor memory = comm.empty(output.sizes(), output.options());
  if (read) copy_on_device(memory, output);
  return memory;
}

}  // namespace

bool all_plain(at::TensorList list) { return std::all_of(list.begin(), list.end(), is_plain); }

at::Tensor plain(const at::Tensor& t) {
  if (is_plain(t)) return t;
  const LocalScope scope;
  return t._is_zerotensor() ? t.clone() : t.resolve_conj().resolve_neg();
}

std::vector<at::Tensor> plain(at::TensorList list) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : list) tensors.push_back(plain(t));
  return tensors;
}

Work into_plain(const Communicator& comm, at::TensorList outputs, bool read,
                c10::function_ref<Work(at::TensorList)> call) {
  std::vector<at::Tensor> written = outputs.vec(), to, from;
  {
    const LocalScope scope;
    for (at::Tensor& t : written) {
      if (is_plain(t)) continue;
      to.push_back(t);
      from.push_back(t = stand_in(comm, t, read));
    }
  }
  auto work = call(written);
  touched(to);
  auto put_back = [to = std::move(to), from = std::move(from)] {
    const LocalScope scope;
    for (std::size_t k = 0; k < to.size(); ++k) copy_on_device(to[k], from[k]);
  };
  return followed(std::move(work), std::move(put_back), backend_of(comm)->shared_record());
}

void touched(at::TensorList outputs) {
  for (const auto& t : outputs) {
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
    if (t.has_storage() && !t._is_zerotensor()) t.mutable_data_ptr();
  }
}

}  // namespace dtensor
