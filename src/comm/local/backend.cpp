// Collectives of thread ranks: each is one pass over memory, directly between the members' tensors. GPU tensors use
// ATen's kernels (device_memory.h).
#include "comm/local/backend.h"

#include <algorithm>
#include <numeric>

#include "comm/local/device_memory.h"
#include "comm/local/mailbox.h"
#include "comm/memory/reduce/reduce.h"
#include "comm/memory/reduce/reduce_tensors.h"
#include "internal/simulated.h"

namespace dtensor::local {
namespace {

class LocalWork final : public Work::Impl {
 public:
  LocalWork(std::shared_ptr<Group> group, std::shared_ptr<Mailbox> mail, std::shared_ptr<Message> message)
      : group_(std::move(group)), mailbox_(std::move(mail)), message_(std::move(message)) {}
  ~LocalWork() override { mailbox_->finish(*group_, *message_); }
  void wait() override { mailbox_->wait(*group_, *message_); }
  bool done() override { return mailbox_->is_complete(*group_, *message_); }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Message> message_;
};

class LocalBackend final : public CommBackend {
 public:
  LocalBackend(std::shared_ptr<Group> group, int me) : CommBackend(me, group->ranks()), group_(std::move(group)) {}

  const char* name() const override { return "local"; }
  bool supports(c10::DeviceType device) const override { return supports_device(device); }

  // A single tensor is a list of one.
  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return all_gather_list(call, outputs, input);
  }
  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    return reduce_scatter_list(call, output, inputs);
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    return all_reduce_list(call, tensor);
  }
  Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) override {
    return reduce_everywhere({call, output, input});
  }

  Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    const auto n = inputs.size();
    exchange({call, outputs, inputs}, [&] {
      for_members([&](int i) {
        for (std::size_t k = 0; k < n; ++k) copy_across_devices(outputs[i * n + k], peer(call, i).inputs[k]);
      });
    });
    return {};
  }

  Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    const auto n = outputs.size();
    exchange({call, outputs, inputs}, [&] {
      for (std::size_t k = 0; k < n; ++k) {
        const auto at = rank() * n + k;
        any_unknown(call, at) ? forget_values(outputs[k]) : reduce_from_all(call, outputs[k], at);
      }
    });
    return {};
  }

  Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors) override {
    return reduce_everywhere({call, tensors, {}});
  }

  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    const PublishedCall mine{call, outputs, inputs};
    exchange(mine, [&] { for_members([&](int i) { copy_across_devices(outputs[i], peer(call, i).inputs[rank()]); }); });
    return {};
  }

  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    const PublishedCall mine{call, tensor, {}};
    exchange(mine, [&] {
      if (rank() != call.peer) copy_across_devices(tensor, peer(call, call.peer).outputs[0]);
    });
    return {};
  }

  Work send(const CollectiveCall& call, const at::Tensor& tensor) override { return post(call, tensor); }
  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override { return post(call, tensor); }

  void barrier(const CollectiveCall& call) override {
    group_->run_collective(
        rank(), {call, {}, {}}, [] {}, /*again=*/false);
  }

  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    const std::vector<int> list(members.begin(), members.end());
    const auto me = std::find(list.begin(), list.end(), rank()) - list.begin();
    return make_backend(group_->subgroup(rank(), list, label), static_cast<int>(me));
  }

  void abort(const std::string& reason) override {
    group_->world().fail("rank " + std::to_string(ranks()[rank()]) + " aborted: " + reason);
  }
  std::string failure() override { return group_->world().failure(); }

 private:
  void exchange(const PublishedCall& mine, c10::function_ref<void()> move) {
    synchronize_streams(mine.outputs);
    synchronize_streams(mine.inputs);
    const auto move_and_settle = [&] {
      move();
      synchronize_streams(mine.outputs);
    };
    group_->run_collective(rank(), mine, move_and_settle);
  }

  // Whether tensor `at` of a member has no values (in a dry run), so that the result of a reduction has none.
  bool any_unknown(const CollectiveCall& call, std::size_t at) const {
    bool unknown = false;
    for (int i = 0; i < size() && is_simulating(); ++i) unknown |= is_simulated(read_by_reduction(peer(call, i))[at]);
    return unknown;
  }

  // Reduces what every member published as inputs[at].
  void reduce_from_all(const CollectiveCall& call, const at::Tensor& output, std::size_t at) {
    if (on_device(output)) {
      std::vector<at::Tensor> sources;
      for (int i = 0; i < size(); ++i) sources.push_back(peer(call, i).inputs[at]);
      return copy_across_devices(output, reduce_tensors(output.device(), sources, call.op));
    }
    const DimOrder order = memory_order(output);
    c10::SmallVector<FlatView, 8> sources;
    for (int i = 0; i < size(); ++i) sources.emplace_back(peer(call, i).inputs[at], order);
    const FlatView target(output, order);
    reduce_views(target, sources, 0, output.numel(), call.dtype, call.op);
  }

  // Each rank reduces its slice of the elements, over all tensors in order, and writes the result into the outputs of
  // all ranks.
  Work reduce_everywhere(const PublishedCall& mine) {
    if (on_device(mine.outputs)) return reduce_apart(mine);
    c10::SmallVector<bool, 8> unknown(mine.outputs.size());
    exchange(mine, [&] {
      for (std::size_t k = 0; k < unknown.size(); ++k) unknown[k] = any_unknown(mine.call, k);
      std::int64_t total = 0, before = 0;
      for (const auto& t : mine.outputs) total += t.numel();
      const ReduceSlice share = reduce_slice_of(total, rank(), size());
      for (std::size_t k = 0; k < mine.outputs.size(); ++k) {
        const auto numel = mine.outputs[k].numel();
        const auto begin = std::clamp<std::int64_t>(share.begin - before, 0, numel);
        const auto end = std::clamp<std::int64_t>(share.end - before, 0, numel);
        if (begin < end && !unknown[k]) reduce_everywhere(mine.call, k, begin, end);
        before += numel;
      }
    });
    for (std::size_t k = 0; k < unknown.size(); ++k) {
      if (unknown[k]) forget_values(mine.outputs[k]);  // no peer reads the tensor any more
    }
    return {};
  }

  // Each rank reduces all elements, and writes its own tensors after all ranks have finished reading them.
  Work reduce_apart(const PublishedCall& mine) {
    std::vector<at::Tensor> results(mine.outputs.size());
    exchange(mine, [&] {
      for (std::size_t k = 0; k < results.size(); ++k) {
        std::vector<at::Tensor> sources;
        for (int i = 0; i < size(); ++i) sources.push_back(read_by_reduction(peer(mine.call, i))[k]);
        results[k] = reduce_tensors(mine.outputs[k].device(), sources, mine.call.op);
      }
    });
    for (std::size_t k = 0; k < results.size(); ++k) copy_across_devices(mine.outputs[k], results[k]);
    return {};
  }

  static at::TensorList read_by_reduction(const PublishedCall& p) { return p.inputs.empty() ? p.outputs : p.inputs; }

  // Reduces elements [begin, end) of tensor k.
  void reduce_everywhere(const CollectiveCall& call, std::size_t k, std::int64_t begin, std::int64_t end) {
    const DimOrder order = memory_order(peer(call, 0).outputs[k]);  // the same on all ranks
    c10::SmallVector<FlatView, 8> targets, sources;
    bool apart = false;
    for (int i = 0; i < size(); ++i) {
      const PublishedCall& p = peer(call, i);
      apart |= !p.inputs.empty();
      targets.emplace_back(p.outputs[k], order);
      sources.emplace_back(read_by_reduction(p)[k], order);
    }
    reduce_views(targets, apart ? sources : targets, begin, end, call.dtype, call.op);
  }

  const PublishedCall& peer(const CollectiveCall& call, int i) const { return group_->published(i, call.sequence); }

  // Starts with this rank, so that not all ranks read the same peer at once.
  template <class Visit>
  void for_members(Visit&& visit) const {
    for (int k = 0; k < size(); ++k) visit((rank() + k) % size());
  }

  Work post(const CollectiveCall& call, const at::Tensor& tensor) {
    synchronize_streams(tensor);
    auto message = group_->mailbox()->post(*group_, rank(), call, tensor);
    return Work(std::make_shared<LocalWork>(group_, group_->mailbox(), std::move(message)));
  }

  std::shared_ptr<Group> group_;
};

}  // namespace

std::shared_ptr<Group> make_world_group(std::shared_ptr<World> world) {
  std::vector<std::int64_t> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<Group>(std::move(world), std::move(ranks), "");
}

std::shared_ptr<CommBackend> make_backend(std::shared_ptr<Group> group, int me) {
  return std::make_shared<LocalBackend>(std::move(group), me);
}

}  // namespace dtensor::local
