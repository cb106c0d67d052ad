// Compares two calls and describes them.
#include "comm/p2p/call_header.h"

#include <algorithm>
#include <cstdio>

#include "comm/error_messages.h"
#include "comm/record/call_history.h"
#include "comm/record/caller.h"
#include "comm/record/hash.h"

namespace dtensor::p2p {
namespace {

constexpr int kShown = 6;  // tensors of a list to show in a message

}  // namespace

Sizes::Sizes(const at::Tensor& tensor) : dims(tensor.dim()) {
  for (std::int64_t d = 0; d < dims; ++d) {
    if (d < kDims) {
      size[d] = tensor.size(d);
    } else {
      size[kDims - 1] *= tensor.size(d);
    }
  }
}

Sizes::Sizes(at::TensorList list) {
  if (list.size() == 1) {
    *this = Sizes(list[0]);
    return;
  }
  std::uint64_t hash = 0;
  const auto add = [&](std::int64_t word) { hash = hash_combine(hash, static_cast<std::uint64_t>(word)); };
  for (std::size_t k = 0; k < list.size(); ++k) {
    add(static_cast<std::int64_t>(list[k].scalar_type()));
    add(list[k].dim());
    for (const std::int64_t length : list[k].sizes()) add(length);
    if (k < kShown) size[kDims - kShown + k] = list[k].numel();
  }
  dims = kList;
  size[0] = std::ssize(list);
  size[1] = static_cast<std::int64_t>(hash);
}

namespace {

// Shows the first tensors; the hash distinguishes lists that look alike.
std::string list_text(const std::int64_t* size) {
  std::string out = std::to_string(size[0]) + " tensors of";
  for (std::int64_t k = 0; k < std::min<std::int64_t>(size[0], kShown); ++k) {
    out += (k > 0 ? ", " : " ") + std::to_string(size[Sizes::kDims - kShown + k]);
  }
  char hash[24];
  std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(size[1]));
  return out + (size[0] > kShown ? ", ..." : "") + " elements, types and sizes " + hash;
}

}  // namespace

std::string Sizes::str() const {
  if (dims == kNone) return "nothing";
  if (dims == kList) return list_text(size);
  std::string out = "[";
  for (int d = 0; d < std::min<std::int64_t>(dims, kDims); ++d) out += (d > 0 ? ", " : "") + std::to_string(size[d]);
  return out + "]";
}

CallHeader::CallHeader(const CollectiveCall& call, std::uint64_t group, const Sizes& gives, const Sizes& expects)
    : group(group),
      sequence(call.sequence),
      operators(call.operators),
      signature(call.signature),
      kind(static_cast<std::int32_t>(call.kind)),
      op(static_cast<std::int32_t>(call.op)),
      dtype(static_cast<std::int32_t>(call.dtype)),
      peer(call.peer),
      gives(gives),
      expects(expects) {
  if (call.caller != nullptr || call.module != nullptr) dtensor::caller_text(call).copy(caller, sizeof caller - 1);
}

std::string CallHeader::str() const {
  if (kind < 0 || kind > static_cast<std::int32_t>(CollectiveKind::barrier) || op < 0 ||
      op > static_cast<std::int32_t>(ReduceOp::product)) {
    return "a call of unknown kind " + std::to_string(kind) + " and operation " + std::to_string(op);
  }
  const auto what = static_cast<CollectiveKind>(kind);
  std::string out = std::string(to_string(what)) + " #" + std::to_string(sequence);
  if (what == CollectiveKind::barrier) return out + caller_text();
  out += " (";
  if (what == CollectiveKind::all_reduce || what == CollectiveKind::reduce_scatter) {
    out += std::string(reduce_op_name(static_cast<ReduceOp>(op))) + ", ";
  }
  if (what == CollectiveKind::broadcast) out += "root " + std::to_string(peer) + ", ";
  out += std::string(c10::toString(static_cast<at::ScalarType>(dtype))) + ' ';
  const auto end = std::string(")") + caller_text();
  if (gives == expects || expects.dims == Sizes::kNone) return out + gives.str() + end;
  if (gives.dims == Sizes::kNone) return out + expects.str() + end;
  return out + "gives " + gives.str() + ", expects " + expects.str() + end;
}

bool fits(const CallHeader& mine, const CallHeader& theirs) {
  const bool message = static_cast<CollectiveKind>(mine.kind) >= CollectiveKind::send &&
                       static_cast<CollectiveKind>(mine.kind) <= CollectiveKind::recv;
  if (mine.group != theirs.group || mine.dtype != theirs.dtype) return false;
  if (message) return mine.expects == theirs.gives;
  if (!same_operators(mine, theirs)) return false;
  return mine.failed_calls == theirs.failed_calls && mine.kind == theirs.kind && mine.op == theirs.op &&
         mine.peer == theirs.peer && mine.sequence == theirs.sequence && mine.gives == theirs.expects &&
         mine.expects == theirs.gives;
}

}  // namespace dtensor::p2p
