// Collectives of processes. Everything is an exchange between pairs; reductions are an exchange into reused buffers
// and a sum in rank order on the receiver, which is deterministic, serves the half types, and is several times faster
// than MPI's own reductions, whose temporaries page-fault.
#include "comm/pairwise/backend.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "comm/buffer_pool.h"
#include "comm/copy.h"
#include "comm/describe.h"
#include "comm/pairwise/collective.h"
#include "comm/pairwise/message.h"
#include "comm/reduce.h"

namespace dtensor::pairwise {
namespace {

// Below this many bytes an all_reduce is one exchange of whole tensors, above it a reduce-scatter and an all-gather.
constexpr std::size_t kSmallReduce = 8192;

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  seed ^= value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2);
  seed *= 0xff51afd7ed558ccdu;
  return seed ^ (seed >> 33);
}

std::int64_t bytes_of(const at::Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

class ProcessBackend final : public CommBackend {
 public:
  explicit ProcessBackend(std::shared_ptr<Members> members)
      : CommBackend(members->me, members->ranks), members_(std::move(members)) {}

  const char* name() const override { return members_->job.transport().name(); }
  bool supports(c10::DeviceType device) const override { return device == c10::DeviceType::CPU; }

  Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) override {
    return guarded(call, outputs, input, [&](Collective& collective) {
      const at::Tensor mine = collective.packed(input);
      exchange(collective, outputs, [&](int) { return mine; });
      copy_tensor(outputs[rank()], input);
    });
  }

  Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) override {
    return guarded(call, outputs, inputs, [&](Collective& collective) {
      exchange(collective, outputs, [&](int i) { return collective.packed(inputs[i]); });
      copy_tensor(outputs[rank()], inputs[rank()]);
    });
  }

  Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) override {
    return guarded(call, output, inputs, [&](Collective& collective) {
      std::vector<at::Tensor> parts = buffers_like(collective, output, inputs[rank()]);
      collective.run([&](int i) {
        const at::Tensor give = collective.packed(inputs[i]);
        return Part{give.const_data_ptr(), bytes_of(give), parts[i].data_ptr(), bytes_of(parts[i])};
      });
      reduce_into(output, parts, call);
    });
  }

  Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) override {
    return guarded(call, tensor, {}, [&](Collective& collective) {
      if (tensor.nbytes() <= kSmallReduce) return reduce_whole(collective, call, tensor);
      const at::Tensor flat = collective.packed(tensor);
      reduce_shares(collective, call, flat);
      if (!flat.is_same(tensor)) copy_tensor(tensor, flat);
    });
  }

  Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) override {
    return guarded(call, tensor, {}, [&](Collective& collective) {
      const bool root = rank() == call.peer;
      const at::Tensor flat = root ? collective.packed(tensor) : collective.landing(tensor);
      collective.run([&](int i) {
        if (root) return Part{flat.const_data_ptr(), bytes_of(flat), nullptr, 0};
        return i == call.peer ? Part{nullptr, 0, flat.data_ptr(), bytes_of(flat)} : Part{};
      });
      if (!root && !flat.is_same(tensor)) copy_tensor(tensor, flat);
    });
  }

  void barrier(const CollectiveCall& call) override {
    static char byte_out = 0, byte_in = 0;  // where no headers meet
    const std::int64_t bytes = members_->job.options().check_calls ? 0 : 1;
    guarded(call, {}, {}, [&](Collective& collective) {
      collective.run([&](int) { return Part{&byte_out, bytes, &byte_in, bytes}; });
    });
  }

  Work send(const CollectiveCall& call, const at::Tensor& tensor) override {
    return start_message(members_, call, tensor);
  }
  Work recv(const CollectiveCall& call, const at::Tensor& tensor) override {
    return start_message(members_, call, tensor);
  }

  // No communication: a group is a list of ranks and a tag that its members compute alike.
  std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) override {
    const std::vector<std::int64_t> list = members.vec();
    std::uint64_t id = mix(members_->id, static_cast<std::uint64_t>(made_[list]++));
    std::vector<std::int64_t> world_ranks;
    for (auto m : list) {
      id = mix(id, static_cast<std::uint64_t>(m) + 1);
      world_ranks.push_back(ranks()[m]);
    }
    const auto me = static_cast<int>(std::find(list.begin(), list.end(), rank()) - list.begin());
    return std::make_shared<ProcessBackend>(
        std::make_shared<Members>(Members{members_->job, std::move(world_ranks), me, id, label}));
  }

  void abort(const std::string& reason) override {
    members_->job.fail("rank " + std::to_string(ranks()[rank()]) + " aborted: " + reason);
  }
  std::string failure() override {
    members_->job.poll();
    return members_->job.failure();
  }

 private:
  // An error that this rank makes inside a collective is everybody's.
  template <class Body>
  Work guarded(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, Body&& body) {
    try {
      Collective collective(*members_, call, outputs, inputs);
      body(collective);
    } catch (...) {
      members_->job.fail("rank " + std::to_string(ranks()[rank()]) + " failed in " +
                         members_->describe(call, outputs, inputs) + ": " + current_exception_text());
      throw;
    }
    return {};
  }

  template <class GiveTo>
  void exchange(Collective& collective, at::TensorList outputs, GiveTo&& give_to) {
    std::vector<at::Tensor> landings(size());
    collective.run([&](int i) {
      landings[i] = collective.landing(outputs[i]);
      const at::Tensor give = give_to(i);
      return Part{give.const_data_ptr(), bytes_of(give), landings[i].data_ptr(), bytes_of(landings[i])};
    });
    for (int i = 0; i < size(); ++i) {
      if (i != rank() && !landings[i].is_same(outputs[i])) copy_tensor(outputs[i], landings[i]);
    }
  }

  // One buffer for each other member, and `own` in this rank's place.
  std::vector<at::Tensor> buffers_like(Collective& collective, const at::Tensor& like, const at::Tensor& own) {
    std::vector<at::Tensor> parts(size());
    for (int i = 0; i < size(); ++i) {
      parts[i] = i == rank() ? own : pooled_empty(like.sizes(), like.scalar_type());
      collective.keep(parts[i]);
    }
    return parts;
  }

  void reduce_into(const at::Tensor& output, const std::vector<at::Tensor>& parts, const CollectiveCall& call) {
    c10::SmallVector<FlatView, 8> sources;
    for (const auto& part : parts) sources.emplace_back(part);
    const FlatView target(output);
    reduce_views(target, sources, 0, output.numel(), call.dtype, call.op);
  }

  void reduce_whole(Collective& collective, const CollectiveCall& call, const at::Tensor& tensor) {
    const at::Tensor own = collective.packed(tensor);
    const std::vector<at::Tensor> parts = buffers_like(collective, tensor, own);
    collective.run([&](int i) {
      return Part{own.const_data_ptr(), bytes_of(own), parts[i].data_ptr(), bytes_of(parts[i])};
    });
    reduce_into(tensor, parts, call);
  }

  void reduce_shares(Collective& collective, const CollectiveCall& call, const at::Tensor& flat) {
    const auto element = static_cast<std::int64_t>(flat.element_size());
    auto* data = static_cast<char*>(flat.data_ptr());
    const Share mine = share_of(flat.numel(), rank(), size());
    const at::Tensor received = pooled_empty({size(), mine.size()}, call.dtype);
    collective.keep(received);
    const auto slot = [&](int i) { return static_cast<char*>(received.data_ptr()) + i * mine.size() * element; };
    collective.run([&](int i) {
      const Share theirs = share_of(flat.numel(), i, size());
      return Part{data + theirs.begin * element, theirs.size() * element, slot(i), mine.size() * element};
    });
    std::vector<const void*> sources(size());
    for (int i = 0; i < size(); ++i) sources[i] = i == rank() ? data + mine.begin * element : slot(i);
    reduce_run(data + mine.begin * element, sources.data(), size(), mine.size(), call.dtype, call.op);
    collective.run([&](int i) {
      const Share theirs = share_of(flat.numel(), i, size());
      return Part{data + mine.begin * element, mine.size() * element, data + theirs.begin * element,
                  theirs.size() * element};
    });
  }

  std::shared_ptr<Members> members_;
  std::map<std::vector<std::int64_t>, int> made_;
};

}  // namespace

std::shared_ptr<CommBackend> make_world_backend(Job& job) {
  std::vector<std::int64_t> ranks(job.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<ProcessBackend>(std::make_shared<Members>(Members{job, std::move(ranks), job.rank(), 1, ""}));
}

}  // namespace dtensor::pairwise
