// What backends share: a reduction into another tensor, and the numbers of calls.
#include "dtensor/comm_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "comm/memory/copy.h"
#include "comm/record/rank_record.h"
#include "internal/ranks/failed_call.h"

namespace dtensor {

Work CommBackend::all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  output.is_cpu() ? copy_tensor(output, input) : static_cast<void>(output.copy_(input));
  return all_reduce(call, output);
}

std::uint64_t CommBackend::next_sequence(CollectiveKind kind) {
  const bool message = kind == CollectiveKind::send || kind == CollectiveKind::recv;
  return message ? ++messages_ : ++collectives_;
}

void CommBackend::skip_call(const std::string& error) {
  next_sequence(CollectiveKind::barrier);
  record().record_error(error);
}

void skip_call(const Communicator& ranks, const std::string& error) { backend_of(ranks)->skip_call(error); }
void report_failed_call(const Communicator& ranks, const std::string& error) {
  backend_of(ranks)->report_failed_call(error);
}

}  // namespace dtensor
