// Every member receives the other members' tensors of a list; reductions sum them in rank order.
#include "comm/p2p/list_collectives.h"

#include "comm/memory/copy.h"
#include "comm/memory/reduce/reduce.h"
#include "comm/p2p/staging.h"
#include "internal/aten_scopes.h"

namespace dtensor::p2p {
namespace {

void keep_all(Collective& collective, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) collective.keep(t);
}

void add_sent(Collective& collective, Transfers& parts, const std::vector<at::Tensor>& buffers) {
  keep_all(collective, buffers);
  for (const at::Tensor& t : buffers) parts.push_back(to_send(t));
}

void add_received(Collective& collective, Transfers& parts, const std::vector<at::Tensor>& buffers) {
  keep_all(collective, buffers);
  for (const at::Tensor& t : buffers) parts.push_back(to_receive(t));
}

// Position of member i in a list of the members other than `me`.
std::size_t index_of(int i, int me) { return static_cast<std::size_t>(i < me ? i : i - 1); }

// The lists of all members in the order of their ranks: `own` and those of the others.
std::vector<std::vector<at::Tensor>> in_rank_order(const std::vector<at::Tensor>& own,
                                                   std::vector<std::vector<at::Tensor>> others, int me) {
  others.insert(others.begin() + me, own);
  return others;
}

// Reduces sources[member][k] into results[k].
void reduce_each(at::TensorList results, const std::vector<std::vector<at::Tensor>>& sources,
                 const CollectiveCall& call) {
  for (std::size_t k = 0; k < results.size(); ++k) {
    c10::SmallVector<FlatView, 8> views;
    for (const auto& of_member : sources) views.emplace_back(of_member[k]);
    reduce_views(FlatView(results[k]), views, 0, results[k].numel(), call.dtype, call.op);
  }
}

// A member's slice of a flat tensor.
std::pair<char*, std::int64_t> slice_of(const at::Tensor& flat, int member, int members) {
  const ReduceSlice part = reduce_slice_of(flat.numel(), member, members);
  return {static_cast<char*>(flat.data_ptr()) + part.begin * static_cast<std::int64_t>(flat.element_size()),
          part.size()};
}

// Each member reduces its slice of each flat tensor; then the slices are exchanged.
void reduce_slices(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                   const AllReduceStaging& staging) {
  const auto& flats = staging.all.buffers();
  const int me = members.me, n = members.size();
  collective.run([&](int i) {
    const auto& space = staging.received[index_of(i, me)];
    keep_all(collective, space);
    Transfers parts;
    for (std::size_t k = 0; k < flats.size(); ++k) {
      const auto [theirs, count] = slice_of(flats[k], i, n);
      parts.push_back({theirs, count * static_cast<std::int64_t>(flats[k].element_size()), space[k].data_ptr(),
                       static_cast<std::int64_t>(space[k].nbytes())});
    }
    return parts;
  });
  for (std::size_t k = 0; k < flats.size(); ++k) {
    const auto [mine, count] = slice_of(flats[k], me, n);
    std::vector<const void*> sources;
    for (int i = 0; i < n; ++i) {
      sources.push_back(i == me ? mine : staging.received[index_of(i, me)][k].const_data_ptr());
    }
    reduce_contiguous(mine, sources.data(), n, count, call.dtype, call.op);
  }
  collective.run([&](int i) {
    Transfers parts;
    for (const at::Tensor& flat : flats) {
      const auto bytes = static_cast<std::int64_t>(flat.element_size());
      const auto [mine, count] = slice_of(flat, me, n);
      const auto [theirs, their_count] = slice_of(flat, i, n);
      parts.push_back({mine, count * bytes, theirs, their_count * bytes});
    }
    return parts;
  });
}

// Each member reduces all data.
void reduce_everywhere(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                       const AllReduceStaging& staging) {
  const auto& flats = staging.all.buffers();
  collective.run([&](int i) {
    Transfers parts;
    for (const at::Tensor& flat : flats) parts.push_back(to_send(flat));
    add_received(collective, parts, staging.received[index_of(i, members.me)]);
    return parts;
  });
  reduce_each(flats, in_rank_order(flats, staging.received, members.me), call);
}

}  // namespace

void gather(const ProcessGroup& members, Collective& collective, at::TensorList outputs, at::TensorList inputs) {
  const LocalBelowAutogradGuard scope;
  const GatherStaging staging(members.me, members.size(), outputs, inputs);
  staging.sent.fill();
  collective.run([&](int i) {
    Transfers parts;
    add_sent(collective, parts, staging.sent.buffers());
    add_received(collective, parts, staging.received[index_of(i, members.me)].buffers());
    return parts;
  });
  for (const Messages& theirs : staging.received) theirs.unpack();
  const std::size_t n = inputs.size();
  for (std::size_t k = 0; k < n; ++k) copy_tensor(outputs[members.me * n + k], inputs[k]);
}

void reduce_scatter_lists(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                          at::TensorList outputs, at::TensorList inputs) {
  const LocalBelowAutogradGuard scope;
  const ReduceScatterStaging staging(members.me, members.size(), outputs, inputs);
  staging.own.pack();
  collective.run([&](int i) {
    const std::size_t index = index_of(i, members.me);
    staging.sent[index].fill();
    Transfers parts;
    add_sent(collective, parts, staging.sent[index].buffers());
    add_received(collective, parts, staging.received[index]);
    return parts;
  });
  reduce_each(staging.sums.tensors(), in_rank_order(staging.own.tensors(), staging.received, members.me), call);
  staging.sums.unpack();
}

void all_reduce_list_in_place(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                              at::TensorList tensors) {
  const LocalBelowAutogradGuard scope;
  const AllReduceStaging staging(members.me, members.size(), tensors);
  staging.all.fill();
  keep_all(collective, staging.all.buffers());
  staging.sliced ? reduce_slices(members, collective, call, staging)
                 : reduce_everywhere(members, collective, call, staging);
  staging.all.unpack();
}

void all_to_all(const ProcessGroup& members, Collective& collective, at::TensorList outputs, at::TensorList inputs) {
  const LocalBelowAutogradGuard scope;
  const AllToAllStaging staging(members.me, outputs, inputs);
  collective.run([&](int i) {
    const std::size_t index = index_of(i, members.me);
    staging.sent[index].fill();
    Transfers parts;
    add_sent(collective, parts, staging.sent[index].buffers());
    add_received(collective, parts, staging.received[index].buffers());
    return parts;
  });
  for (const Messages& theirs : staging.received) theirs.unpack();
  copy_tensor(outputs[members.me], inputs[members.me]);
}

void broadcast(const ProcessGroup& members, Collective& collective, int root, const at::Tensor& tensor) {
  const LocalBelowAutogradGuard scope;
  const Messages message(tensor, PackedAs::bytes);
  const bool sends = members.me == root;
  if (sends) message.fill();
  collective.run([&](int i) {
    Transfers parts;
    if (sends) add_sent(collective, parts, message.buffers());
    if (i == root) add_received(collective, parts, message.buffers());
    return parts;
  });
  if (!sends) message.unpack();
}

}  // namespace dtensor::p2p
