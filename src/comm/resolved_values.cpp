// Unresolved inputs are read from a copy, and unresolved outputs are written to a temporary that is copied back.
#include "comm/resolved_values.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "comm/composite/chained_work.h"
#include "comm/memory/packed.h"
#include "dtensor/comm_backend.h"
#include "internal/aten_scopes.h"
#include "internal/simulated.h"

namespace dtensor {
namespace {

// Tensors that no backend supports pass, since the argument checks reject them.
bool is_resolved(const at::Tensor& t) {
  return !t.defined() || !t.has_storage() || !(t.is_conj() || t.is_neg() || t._is_zerotensor());
}

at::Tensor temporary_output(const Communicator& comm, const at::Tensor& output, bool read) {
  TORCH_CHECK(at::has_internal_overlap(output) != at::MemOverlap::Yes && !output._is_zerotensor(),
              "a collective: expected an output with memory and without internal overlap, got sizes ", output.sizes(),
              ", strides ", output.strides());
  const at::Tensor memory = comm.empty(output.sizes(), output.options());
  if (read) copy_on_device(memory, output);
  return memory;
}

}  // namespace

bool all_resolved(at::TensorList list) { return std::all_of(list.begin(), list.end(), is_resolved); }

at::Tensor resolved(const at::Tensor& t) {
  if (is_resolved(t)) return t;
  const LocalBelowAutogradGuard scope;
  return t._is_zerotensor() ? t.clone() : t.resolve_conj().resolve_neg();
}

std::vector<at::Tensor> resolved(at::TensorList list) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : list) tensors.push_back(resolved(t));
  return tensors;
}

Work with_resolved_outputs(const Communicator& comm, at::TensorList outputs, bool read,
                           c10::function_ref<Work(at::TensorList)> call) {
  std::vector<at::Tensor> written = outputs.vec(), to, from;
  {
    const LocalBelowAutogradGuard scope;
    for (at::Tensor& t : written) {
      if (is_resolved(t)) continue;
      to.push_back(t);
      from.push_back(t = temporary_output(comm, t, read));
    }
  }
  auto work = call(written);
  mark_outputs_written(to);
  auto put_back = [to = std::move(to), from = std::move(from)] {
    const LocalBelowAutogradGuard scope;
    for (std::size_t k = 0; k < to.size(); ++k) copy_on_device(to[k], from[k]);
  };
  return with_continuation(std::move(work), std::move(put_back), backend_of(comm)->shared_record());
}

void mark_outputs_written(at::TensorList outputs) {
  for (const auto& t : outputs) {
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
    if (t.has_storage() && !t._is_zerotensor() && !is_simulated(t)) t.mutable_data_ptr();
  }
}

}  // namespace dtensor
