// What waits belongs to the backward pass, not to a thread: its end callback owns it, so that nothing is left of a pass
// that throws.
#include "autograd/leaf_reduction.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <memory>
#include <tuple>

#include "comm/reduce_policy.h"
#include "dtensor/hooks.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// That many bytes of gradients are reduced without waiting for more: what is in flight beside backward, and what is
// packed, stays bounded. Counted in global sizes, which every rank knows alike.
constexpr std::int64_t kEnough = std::int64_t{25} << 20;

struct Waiting {
  DTensor leaf, gradient;
  Placements wanted;

  const TensorSpec& spec() const { return *dtensor_or_null(gradient)->spec(); }
  // Under a ReducePolicy: the unrounded shares.
  const at::Tensor& local() const {
    const auto* unrounded = dtensor_or_null(gradient)->unrounded();
    return unrounded == nullptr ? dtensor_or_null(gradient)->local() : *unrounded;
  }
  AxisMask axes() const;
  ReduceOp op() const;
};

bool is_sum(const TensorSpec& spec, const Placements& wanted, std::size_t axis) {
  return spec.placements[axis].is_partial() && wanted[axis].is_replicate() && spec.mesh->layout.shape[axis] > 1;
}

AxisMask Waiting::axes() const {
  AxisMask mask = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) mask |= is_sum(spec(), wanted, i) ? AxisMask{1} << i : 0;
  return mask;
}

ReduceOp Waiting::op() const {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (is_sum(spec(), wanted, i)) return spec().placements[i].reduce_op();
  }
  return ReduceOp::sum;
}

// Gradients that one collective sums up.
using Group = std::vector<Waiting>;

bool go_together(const Waiting& a, const Waiting& b) {
  const auto key = [](const Waiting& w) {
    return std::make_tuple(w.spec().mesh.get(), w.axes(), w.op(), w.local().scalar_type(), w.local().device());
  };
  return key(a) == key(b);
}

std::vector<Group> grouped(std::vector<Waiting> list) {
  std::vector<Group> groups;  // in the order of their first gradient, the same on every rank
  for (auto& w : list) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return go_together(g[0], w); });
    (found == groups.end() ? groups.emplace_back() : *found).push_back(std::move(w));
  }
  return groups;
}

// The sums, as views of one buffer in their gradients' order of dimensions.
std::vector<at::Tensor> views_of(const at::Tensor& flat, const Group& group) {
  std::vector<at::Tensor> views;
  std::int64_t offset = 0;
  for (const auto& w : group) {
    const auto strides = at::infer_dense_strides(w.local().sizes(), w.spec().strides);
    views.push_back(flat.as_strided(w.local().sizes(), strides, offset));
    offset += w.local().numel();
  }
  return views;
}

struct Flight {
  Group group;
  std::vector<at::Tensor> sums = {};
  Work work = {};

  void start(const Communicator& comm);
  void land();
};

void Flight::start(const Communicator& comm) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_scope(c10::DispatchKey::DeferredInit);
  std::int64_t total = 0;
  for (const auto& w : group) total += w.local().numel();
  const auto flat = comm.empty({total}, group[0].local().options());
  sums = views_of(flat, group);
  for (std::size_t k = 0; k < sums.size(); ++k) sums[k].copy_(group[k].local());
  work = comm.all_reduce(flat, group[0].op());
}

void Flight::land() {
  work.wait();
  for (std::size_t k = 0; k < group.size(); ++k) {
    auto& w = group[k];
    accumulate_gradient(w.leaf, DTensor(make_dtensor(with_placements(w.spec(), w.wanted), sums[k].to(w.spec().dtype))));
  }
}

// One backward pass.
class Pass {
 public:
  static Pass& current();
  ~Pass();

  void set_aside(const DTensor& leaf);
  bool give_back(const DTensor& leaf);
  void add(Waiting waiting);
  void flush();
  void finish();

 private:
  struct Aside {
    DTensor leaf;
    at::Tensor gradient;
  };
  std::vector<Aside> aside_;
  std::vector<Waiting> waiting_;
  std::int64_t bytes_ = 0;
  std::vector<Flight> flights_;
};

struct Open {
  int id;
  std::weak_ptr<Pass> pass;
};

std::vector<Open>& open_passes() {
  static thread_local std::vector<Open> passes;
  return passes;
}

std::shared_ptr<Pass> find_pass(int id) {
  for (const auto& open : open_passes()) {
    if (open.id == id) return open.pass.lock();
  }
  return nullptr;
}

Pass& Pass::current() {
  const int id = current_backward();
  if (const auto known = find_pass(id)) return *known;
  std::erase_if(open_passes(), [&](const Open& open) { return open.id == id || open.pass.expired(); });
  const auto pass = std::make_shared<Pass>();
  open_passes().push_back({id, pass});
  at_backward_end([pass] { pass->finish(); });
  return *pass;
}

// A pass that threw between the two hooks of a leaf.
Pass::~Pass() {
  for (const auto& aside : aside_) aside.leaf.mutable_grad() = aside.gradient;
}

void Pass::set_aside(const DTensor& leaf) {
  aside_.push_back({leaf, std::exchange(leaf.mutable_grad(), at::Tensor())});
}

bool Pass::give_back(const DTensor& leaf) {
  const auto found = std::find_if(aside_.begin(), aside_.end(), [&](auto& a) { return a.leaf.is_same(leaf); });
  if (found == aside_.end()) return false;
  leaf.mutable_grad() = std::move(found->gradient);
  aside_.erase(found);
  return true;
}

void Pass::add(Waiting waiting) {
  const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) {
    return w.leaf.is_same(waiting.leaf) && w.gradient.placements() == waiting.gradient.placements();
  });
  if (same != waiting_.end()) {  // of a segment that is recomputed
    same->gradient = DTensor(same->gradient + waiting.gradient);
    return;
  }
  bytes_ += waiting.gradient.numel() * static_cast<std::int64_t>(waiting.gradient.element_size());
  waiting_.push_back(std::move(waiting));
  if (bytes_ >= kEnough) flush();
}

void Pass::flush() {
  bytes_ = 0;
  for (auto& group : grouped(std::exchange(waiting_, {}))) {
    const auto& mesh = acting(*group[0].spec().mesh);
    const auto& comm = mesh.communicator(group[0].axes());
    Flight flight{std::move(group)};
    flight.start(comm);
    comm.asynchronous() ? flights_.push_back(std::move(flight)) : flight.land();
  }
}

void Pass::finish() {
  const at::NoGradGuard no_grad;
  flush();
  for (auto& flight : std::exchange(flights_, {})) flight.land();
}

// Only sums of one kind go together.
Placements with_sums_of(const DTensor& gradient, Placements wanted, ReduceOp op) {
  const auto& spec = *dtensor_or_null(gradient)->spec();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (is_sum(spec, wanted, i) && spec.placements[i].is_partial(op)) wanted[i] = spec.placements[i];
  }
  return wanted;
}

}  // namespace

std::optional<Placements> waiting_placements(const DTensor& gradient, const Placements& wanted) {
  const auto& spec = *dtensor_or_null(gradient)->spec();
  if (!spec.mesh->is_member || c10::isFloat8Type(spec.dtype)) return std::nullopt;
  const bool carried = carried_type(spec.dtype) != at::ScalarType::Undefined;
  if (carried && dtensor_or_null(gradient)->unrounded() == nullptr) return std::nullopt;  // the plan knows how
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!is_sum(spec, wanted, i)) continue;
    const auto waits = with_sums_of(gradient, wanted, spec.placements[i].reduce_op());
    // Shares that are not rounded yet are moved once: here, or all the way.
    const bool moves = dtensor_or_null(gradient)->unrounded() != nullptr && waits != spec.placements;
    return moves ? std::nullopt : std::optional(waits);
  }
  return std::nullopt;
}

void expect_gradient(const DTensor& leaf) { Pass::current().set_aside(leaf); }

bool take_gradient(const DTensor& leaf, const Placements& wanted) {
  const auto pass = find_pass(current_backward());
  if (!pass) return false;
  at::Tensor gradient = leaf.grad();
  if (!pass->give_back(leaf)) return false;
  // What was accumulated without synchronisation joins it.
  if (is_dtensor(leaf.grad()) && DTensor(leaf.grad()).placements() != wanted) {
    gradient = leaf.grad() + gradient;
    leaf.mutable_grad().reset();
  }
  const DTensor sum(std::move(gradient));
  const auto waits = waiting_placements(sum, wanted);
  if (waits) {
    pass->add({leaf, sum.redistribute(*waits), wanted});
  } else {
    accumulate_gradient(leaf, sum.redistribute(wanted));
  }
  return true;
}

}  // namespace dtensor
