// When units are gathered, dropped and reduced. One schedule for the units of a model, on one rank. Everything follows
// from the order in which operators use parameters and gradients arrive, which is the same on every rank.
#pragma once

#include <memory>
#include <vector>

#include "parallel/fsdp/gradients/reduction.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

using Unit = FsdpUnit::Impl;

class Schedule {
 public:
  // Makes this the schedule of `unit` and of every unit of its former one.
  static void join(const std::shared_ptr<Schedule>& schedule, Unit& unit);
  void leave(Unit& unit);

  // An operator uses parameter k of `unit`: its gathered local tensor, or undefined where that does not serve.
  at::Tensor use(Unit& unit, std::size_t k, const DTensor& parameter, const Placements& gathered, at::ScalarType dtype);
  // A call on a rank's own data begins, or backward reaches it: gathers, and keeps until the call leaves.
  void enter(Unit& unit);
  // The call's forward pass is over. `keep`: the unit is what backward begins with.
  void leave(Unit& unit, bool keep);
  // Backward has reached the call's module; has all gradients of its parameters, or ends.
  void enter_backward(Unit& unit);
  void leave_backward(Unit& unit);
  // The gradient of parameter k of this backward pass has come.
  void gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient);
  void release(Unit& unit);
  // Gathers and keeps until unpin().
  void pin(Unit& unit);
  void unpin(Unit& unit);
  // What passes under NoGradientSync left in .grad.
  void reduce_leftovers(Unit& unit);
  void finish_reductions();

  FsdpStats stats;

 private:
  void add_counts(Schedule& former);
  void begin_use(Unit& unit);
  void enter_pass(int pass);
  void leave_calls(int pass);
  void keep_for_graph(int pass);
  void end_pass(int pass);
  void forget_failed_passes();
  void abandon_passes();
  void abandon(Unit& unit);
  static void forget_expected(Unit& unit);
  static void learn_segments(Unit& unit);
  static void learn_implicit_reshards(Unit& unit);
  void switch_pass_kind(PassKind pass_kind);
  void release_finished(const Unit& next);
  void limit_inference();
  bool begins_backward(const Unit& unit, const Unit& next) const;
  bool is_first_in_backward(const Unit& unit) const;
  void keep_for_backward(Unit& unit, const Unit& next);
  void drop_kept_after_forward(const Unit& next);
  bool is_finished(const Unit& unit) const;
  bool ends_implicitly(const Unit& unit) const;
  void gather(Unit& unit);
  void note_use(Unit& unit, Parameter& p, const DTensor& parameter);
  void prefetch(const Unit& unit);
  bool may_prefetch(const Unit& by, const Unit& next) const;
  void finish_gather(Unit& unit);
  void reduce(Unit& unit, const at::Tensor& arriving = {});
  void add_pending(Parameter& p, at::Tensor gradient);
  void advance_reductions();
  bool take_leftovers(const Unit& unit, Parameter& p);
  void count_gathered(std::int64_t bytes);
  void count_unreduced(std::int64_t bytes);

  // Owned by the end callback of a backward pass, also where the pass throws and its callback never runs.
  struct PassEnd {
    Schedule& schedule;
    int pass;
    std::vector<at::Tensor> parameters;  // the last unit could go while its gradients are on their way
    ~PassEnd();
  };

  std::vector<Unit*> units_;
  struct Pass {
    int id;
    std::weak_ptr<const void> owner_alive;  // what its end callback owns: gone where it threw
    bool makes_graph = false;               // create_graph
  };
  std::vector<Pass> passes_;  // backward passes under way
  PassKind pass_kind_ = kForward;
  Unit* current_ = nullptr;                           // the last one used
  Unit* kept_after_forward_ = nullptr;                // finished in forward, but backward begins with it
  const Unit* first_used_after_kept_ = nullptr;       // the unit whose use ended forward's use of that one
  Unit* recomputed_ = nullptr;                        // left last by a forward pass within backward
  std::array<std::vector<Unit*>, kPassKinds> order_;  // first uses, in the last phase of that kind
  std::unique_ptr<GradientReduction> reduce_scattering_, all_reducing_;  // under way
  std::vector<Unit*> running_;                                           // in this phase
};

}  // namespace dtensor::fsdp
