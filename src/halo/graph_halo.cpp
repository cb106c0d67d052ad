// The exchange of ghost rows and its adjoint. The backward node of each calls the other, so both can be differentiated
// any number of times.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <map>
#include <mutex>

#include "dtensor/halo.h"
#include "dtensor/tensor.h"
#include "halo/send_lists.h"
#include "internal/aten_scopes.h"
#include "internal/autograd_node.h"
#include "internal/ranks/failed_call.h"

namespace dtensor {

struct GraphHalo::Impl {
  Impl(const Communicator& r, std::int64_t n, at::TensorList send_lists, at::IntArrayRef expected_counts)
      : ranks(r),
        owned(n),
        lists(halo::agree_on_send_lists(r, n, send_lists, expected_counts)),
        ghosts(c10::sum_integers(lists.receive_counts)),
        sent(lists.index.numel()) {}

  // The rows to send, on the device of the data. Copied once for each device.
  at::Tensor index_on(const at::Device& device) const {
    if (device.is_cpu()) return lists.index;
    const std::lock_guard lock(mutex);
    auto& copy = copies[device.str()];
    if (!copy.defined()) copy = lists.index.to(device);
    return copy;
  }

  // Starts the transfer of rows between owners and ghosts, ordered by rank. Without remote rows the only list is this
  // rank's own, and the transfer is a copy.
  Work start_transfer(const at::Tensor& to, at::IntArrayRef to_counts, const at::Tensor& from,
                      at::IntArrayRef from_counts) const {
    if (lists.remote) return ranks.all_to_all(to.split_with_sizes(to_counts), from.split_with_sizes(from_counts));
    to.copy_(from);
    return {};
  }

  at::Tensor exchange(const at::Tensor& rows) const;
  at::Tensor reduce(const at::Tensor& rows) const;

  const Communicator ranks;
  const std::int64_t owned;
  const halo::SendLists lists;
  const std::int64_t ghosts, sent;
  mutable std::mutex mutex;
  mutable std::map<std::string, at::Tensor> copies;
};

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

at::Tensor empty_rows(const at::Tensor& like, std::int64_t rows, at::ScalarType dtype) {
  auto sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options().dtype(dtype));
}

// Sums of many rows would lose the small ones in these dtypes.
at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

void check_rows(const char* what, const at::Tensor& rows, std::int64_t expected, const char* of) {
  TORCH_CHECK(rows.defined() && !is_dtensor(rows), "GraphHalo::", what, ": expected a regular tensor, got ",
              rows.defined() ? "a DTensor; pass its to_local()" : "an undefined tensor");
  TORCH_CHECK(rows.dim() > 0 && rows.size(0) == expected, "GraphHalo::", what, ": expected ", expected, " rows (", of,
              ") in dimension 0, got a tensor of shape ", rows.sizes());
}

// The operator of the node's name. An undefined gradient counts as zeros, because the collective runs on all ranks.
using Operator = at::Tensor (GraphHalo::*)(const at::Tensor&) const;
struct GraphHaloBackward final : Node {
  GraphHaloBackward(GraphHalo h, Operator o, const char* n) : halo(std::move(h)), adjoint(o), of(n) {}
  std::string name() const override { return of + std::string("Backward"); }
  variable_list apply(variable_list&& grads) override {
    at::Tensor grad = grads[0];
    if (!grad.defined()) {
      const NoMeshScopeGuard regular;
      grad = input_metadata(0).zeros_like();
    }
    try {
      return {(halo.*adjoint)(grad)};
    } catch (const CommError& error) {
      throw CommError(c10::str(error.what(), "; in backward of ", of, ", which is collective: the loss of each rank ",
                               "must depend on what ", of, " returned on that rank; add 0 * result.sum() if it is ",
                               "unused"));
    }
  }
  GraphHalo halo;
  Operator adjoint;
  const char* of;
};

at::Tensor with_backward(const at::Tensor& result, const at::Tensor& rows, const GraphHalo& halo, Operator adjoint,
                         const char* of) {
  if (!at::GradMode::is_enabled() || !rows.requires_grad()) return result;
  auto node = make_node<GraphHaloBackward>(halo, adjoint, of);
  node->set_next_edges(torch::autograd::collect_next_edges(rows));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace

at::Tensor GraphHalo::Impl::exchange(const at::Tensor& rows) const {
  const LocalBelowAutogradGuard local;
  const auto packed = rows.index_select(0, index_on(rows.device()));
  const auto result = empty_rows(rows, owned + ghosts, rows.scalar_type());
  auto transfer = start_transfer(result.narrow(0, owned, ghosts), lists.receive_counts, packed, lists.send_counts);
  result.narrow(0, 0, owned).copy_(rows);
  transfer.wait();
  return result;
}

at::Tensor GraphHalo::Impl::reduce(const at::Tensor& rows) const {
  const LocalBelowAutogradGuard local;
  const auto dtype = rows.scalar_type();
  const auto arrived = empty_rows(rows, sent, dtype);
  auto transfer = start_transfer(arrived, lists.send_counts, rows.narrow(0, owned, ghosts), lists.receive_counts);
  const auto sum = empty_rows(rows, owned, sum_dtype(dtype));
  sum.copy_(rows.narrow(0, 0, owned));
  transfer.wait();
  sum.index_add_(0, index_on(rows.device()), arrived.to(sum.scalar_type()));
  return sum.to(dtype);
}

GraphHalo::GraphHalo(const Communicator& ranks, std::int64_t owned, at::TensorList send_lists,
                     at::IntArrayRef receive_counts)
    : impl_(std::make_shared<const Impl>(ranks, owned, send_lists, receive_counts)) {}

std::int64_t GraphHalo::owned() const { return impl_->owned; }
std::int64_t GraphHalo::ghosts() const { return impl_->ghosts; }
const std::vector<std::int64_t>& GraphHalo::send_counts() const { return impl_->lists.send_counts; }
const std::vector<std::int64_t>& GraphHalo::receive_counts() const { return impl_->lists.receive_counts; }
const Communicator& GraphHalo::ranks() const { return impl_->ranks; }

at::Tensor GraphHalo::exchange(const at::Tensor& rows) const {
  return skipped_if_invalid(ranks(), [&] {
    check_rows("exchange", rows, owned(), "the owned ones");
    return with_backward(impl_->exchange(rows), rows, *this, &GraphHalo::reduce, "GraphHalo::exchange");
  });
}

at::Tensor GraphHalo::reduce(const at::Tensor& rows) const {
  return skipped_if_invalid(ranks(), [&] {
    check_rows("reduce", rows, owned() + ghosts(), "owned and ghosts");
    return with_backward(impl_->reduce(rows), rows, *this, &GraphHalo::exchange, "GraphHalo::reduce");
  });
}

}  // namespace dtensor
